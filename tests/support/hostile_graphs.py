"""Small graphs that never end."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCAB_SIZE = 8


def endless(file, *, token):
    """A decoder that never ends once it reads `token` or one after it."""
    scalar = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["before"], ["after"]), helper.make_node("Identity", ["x"], ["y"])],
        "body",
        [
            scalar("i", TensorProto.INT64, []),
            scalar("before", TensorProto.BOOL, []),
            scalar("x", TensorProto.FLOAT, []),
        ],
        [scalar("after", TensorProto.BOOL, []), scalar("y", TensorProto.FLOAT, [])],
    )
    nodes = [
        helper.make_node("ReduceMax", ["input_ids"], ["largest"], keepdims=0),
        helper.make_node("GreaterOrEqual", ["largest", "token"], ["condition"]),
        helper.make_node("Loop", ["", "condition", "zero"], ["end"], body=body),
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Add", ["rows", "end"], ["logits"]),
    ]
    weights = {"token": np.array(token), "zero": np.array(0, np.float32), "table": np.eye(VOCAB_SIZE, dtype=np.float32)}
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "time"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "time", VOCAB_SIZE])
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "endless", [ids], [logits], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
