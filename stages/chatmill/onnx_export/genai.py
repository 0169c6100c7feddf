"""The files with which ONNX Runtime GenAI runs our `shared` graph: a graph with the inputs it expects, and settings.

Shapes: B batch, T time (tokens given), P past, V vocabulary.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

CONFIG_FILE = "genai_config.json"
GRAPH_FILE = "model_genai.onnx"
INLINE = 1024  # bytes from which a tensor is a reference
_REPLACED = ("seqlens_k", "total_sequence_length", "logits_to_keep")
_SHAPE = ("hidden_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads")
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def graph(file: Path) -> ModelProto:
    """input_ids (B, T), attention_mask (B, P+T), past -> logits (B, 1, V) of the last position.

    It is the `shared` graph of the file with other inputs. Its weights are read from that file, so that it has to be in
    the same folder.
    """
    model = onnx.load(file)
    _replace_inputs(model.graph)
    _reference_weights(file, model.graph.initializer)
    return model


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The content of genai_config.json: greedy decoding until a text ends or fills the context."""
    context = config["max_position_embeddings"]
    parts = ("key", "value")
    decoder = {
        "session_options": {"provider_options": []},
        "filename": GRAPH_FILE,
        "head_size": config["head_dim"],
        **{name: config[name] for name in _SHAPE},
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            **{f"past_{part}_names": f"past_key_values.%d.{part}" for part in parts},
        },
        "outputs": {"logits": "logits", **{f"present_{part}_names": f"present.%d.{part}" for part in parts}},
    }
    model = {
        "type": "llama",  # any decoder with these inputs; the graph itself defines what it computes
        "vocab_size": config["vocab_size"],
        "context_length": context,
        **{name: config[name] for name in _TOKENS if name in config},
        "decoder": decoder,
    }
    return {"model": model, "search": {"do_sample": False, "max_length": context, "past_present_share_buffer": True}}


def _replace_inputs(graph: onnx.GraphProto) -> None:
    """Compute the lengths from the mask, and the logits of the last position only."""
    remaining = [node for node in graph.input if node.name not in _REPLACED]
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch_size", "total"])
    one, axis = "attention_mask.one", "attention_mask.axis"
    constants = {"logits_to_keep": np.array([1]), one: np.array(1), axis: np.array([1])}
    nodes: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("ReduceSum", ["attention_mask", axis], "attention_mask.sum", {"keepdims": 0}),
        ("Sub", ["attention_mask.sum", one], "attention_mask.last", {}),
        ("Cast", ["attention_mask.last"], "seqlens_k", {"to": TensorProto.INT32}),
        ("Shape", ["attention_mask"], "attention_mask.shape", {"start": 1, "end": 2}),
        ("Squeeze", ["attention_mask.shape"], "attention_mask.length", {}),
        ("Cast", ["attention_mask.length"], "total_sequence_length", {"to": TensorProto.INT32}),
    ]
    after = list(graph.node)
    for field in ("input", "node"):
        graph.ClearField(field)
    graph.input.extend([*remaining, mask])
    graph.node.extend(
        helper.make_node(operator, inputs, [output], output, **attributes)
        for operator, inputs, output, attributes in nodes
    )
    graph.node.extend(after)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1  # by this, GenAI knows that there is only one position


def _reference_weights(file: Path, tensors: Iterable[TensorProto]) -> None:
    """Replace the large tensors of a graph by references to a file, which holds them in this order."""
    content, at = file.read_bytes(), 0
    for tensor in tensors:
        if len(tensor.raw_data) < INLINE:
            continue
        at, size = content.index(tensor.raw_data, at), len(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", file.name), ("offset", at), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
