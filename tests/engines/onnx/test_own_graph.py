"""Our graphs prove themselves to be ours; none that is changed into a hostile one does."""

import os
import resource
import sys
from copy import deepcopy
from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from chatmill.checkpoints.configuration import Variant, to_hugging_face
from chatmill.engines.onnx import graph_probe, own_graph
from chatmill.engines.onnx.graph_engine import GraphEngine
from chatmill.engines.onnx.onnx_engine import SharedCacheEngine, open_onnx_engine
from chatmill.engines.onnx.own_graph import is_own
from chatmill.onnx_export.graphs import write
from chatmill.pipeline.manifest import write_manifest
from export_onnx import BUILDS
from support.hostile_graphs import endless
from support.tiny import CONFIG, random_model

VARIANTS = {
    "qwen3": CONFIG,
    "a head of its own": replace(CONFIG, tie_word_embeddings=False),
    "biases": replace(CONFIG, variant=Variant(qkv_bias=True, output_bias=True, mlp_bias=True)),
    "neither norms nor groups": replace(CONFIG, num_key_value_heads=4, variant=Variant(qk_norm=False)),
    "a window": replace(CONFIG, variant=Variant(sliding_window=6)),
    "no whole blocks": replace(CONFIG, hidden_size=48),
    "one layer": replace(CONFIG, num_hidden_layers=1),
}


def build(config, engine):
    weights = {name: weight.numpy() for name, weight in random_model(config).state_dict().items()}
    return BUILDS[engine](weights, to_hugging_face(config), {"fingerprint": "f", "template": "chatml"})


GRAPHS = {engine: build(CONFIG, engine) for engine in ("onnx", "onnx_hf")}

TINY = replace(
    CONFIG, vocab_size=16, hidden_size=4, intermediate_size=2, num_hidden_layers=1, max_position_embeddings=2
)
SMALL = build(TINY, "onnx_hf").SerializeToString()  # mostly operators


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_graphs_that_we_export_are_ours(tmp_path, variant):
    for engine in BUILDS:
        write(build(VARIANTS[variant], engine), tmp_path / f"{engine}.onnx")
    assert [engine for engine in BUILDS if not is_own(tmp_path / f"{engine}.onnx")] == []


def test_an_own_graph_is_opened_without_a_trial_wherever_it_lies(tmp_path, monkeypatch):
    monkeypatch.setattr(graph_probe.subprocess, "run", None)
    for engine, kind in (("onnx", SharedCacheEngine), ("onnx_hf", GraphEngine)):
        write(GRAPHS[engine], tmp_path / "model.onnx")
        assert isinstance(open_onnx_engine(tmp_path / "model.onnx", name="onnx", threads=1), kind)


def node(operator, inputs, output, **attributes):
    return lambda model: model.graph.node.append(helper.make_node(operator, inputs, [output], **attributes))


def constant(name, array):
    return lambda model: model.graph.initializer.append(numpy_helper.from_array(np.array(array), name))


def take_no_data(model):
    model.graph.initializer[0].dims[0] = 1 << 19


def take_floats(model):
    weight = model.graph.initializer[0]
    values = numpy_helper.to_array(weight)
    weight.CopyFrom(helper.make_tensor(weight.name, TensorProto.FLOAT, values.shape, values.ravel()))


def refer(model):
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../weights")


def add_function(model):
    one = helper.make_node("Abs", ["x"], ["y"])
    model.functions.append(helper.make_function("own", "f", ["x"], ["y"], [one], [helper.make_opsetid("", 23)]))


def branch(model):
    empty = helper.make_graph([], "empty", [], [])
    model.graph.node.append(helper.make_node("If", ["yes"], [], then_branch=empty, else_branch=empty))


def set_rows(model):
    for weight in model.graph.initializer:
        if weight.name == "heads.4":
            weight.CopyFrom(numpy_helper.from_array(np.array([1, -1, 1, 1]), "heads.4"))


def set_order(model):
    next(one for one in model.graph.node if one.op_type == "Transpose").attribute[0].ints[:] = [0, 1, 2, 3]


def use_often(model):
    for i in range(100):
        node("MatMul", ["model.norm", "model.layers.0.self_attn.q_proj.weight"], f"again.{i}")(model)


def set_end(model):
    constant("far", 10**12)(model)
    next(one for one in model.graph.node if one.op_type == "Range").input[1] = "far"


def fix_batch(model):
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1 << 40


def widen(model):
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((1, (1 << 20) + 1), np.float32), "wide"))


CHANGES = {
    "a large constant": [constant("n", [10**10]), node("ConstantOfShape", ["n"], "zeros")],
    "an expansion": [constant("n", [10**10]), node("Expand", ["model.norm.weight", "n"], "wide")],
    "a repetition": [constant("n", [10**10]), node("Tile", ["model.norm.weight", "n"], "wide")],
    "a product of weights": [node("Mul", ["cosines", "sines"], "product")],
    "a sum of columns and rows": [
        constant("two", [1, 2]),
        node("Unsqueeze", ["model.norm.weight", "two"], "column"),
        node("Add", ["column", "model.norm.weight"], "square"),
    ],
    "an outer product of positions": [node("Mul", ["queries", "keys"], "square")],
    "a mask of masks": [node("Unsqueeze", ["mask", "one"], "cube")],
    "rows gathered by columns": [node("Gather", ["cosines", "input_ids"], "square", axis=1)],
    "a branch": [constant("yes", True), branch],
    "a function": [add_function],
    "weights elsewhere": [refer],
    "weights that are not there": [take_no_data],
    "weights as numbers": [take_floats],
    "heads of any shape": [set_rows],
    "heads not turned": [set_order],
    "a weight used a hundred times": [use_often],
    "a range of constants": [set_end],
    "a fixed batch": [fix_batch],
    "a wide matrix": [widen],
    "a sum of the wrong domain": [node("Add", ["model.norm", "model.norm"], "sum", domain="other")],
    "a name defined twice": [node("Add", ["model.norm", "model.norm"], "model.norm")],
    "a name from nowhere": [node("Add", ["model.norm", "nowhere"], "sum")],
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_a_graph_with_anything_else_in_it_is_not_ours(tmp_path, changes):
    model = deepcopy(GRAPHS["onnx_hf"])
    for change in changes:
        change(model)
    onnx.save(model, tmp_path / "model.onnx")
    assert not is_own(tmp_path / "model.onnx")


def test_bytes_that_another_parser_would_read_otherwise_are_not_ours(tmp_path):
    content, file = GRAPHS["onnx_hf"].SerializeToString(), tmp_path / "model.onnx"
    graph = onnx.ModelProto(graph=onnx.GraphProto(node=[helper.make_node("Loop", [], [])]))
    for added in (
        graph.SerializeToString(),
        b"\x0a\x00",
        b"\xfa\x7f\x00",
        b"\x08",
        b"\x3a\xff\xff\xff\xff\x0f",
        b"\x3b",
    ):
        file.write_bytes(content + added)
        assert not is_own(file)
    for length in (0, 1, 100, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:length])
        assert not is_own(file)


def test_a_file_of_many_fields_is_not_read_to_its_end(tmp_path):
    file = tmp_path / "model.onnx"
    file.write_bytes(b"\x42\x00" * 1_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert not is_own(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_bytes_changed_are_ours_or_not(tmp_path_factory, data):
    file = tmp_path_factory.getbasetemp() / "changed.onnx"
    content = bytearray(SMALL)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content)
    assert is_own(file) in (True, False)


@pytest.mark.parametrize("limit", ["MAX_NODES", "MAX_WIDTH", "MAX_HEADS", "MAX_ELEMENTS", "MAX_READS"])
def test_a_graph_over_a_limit_is_not_ours(tmp_path, monkeypatch, limit):
    write(GRAPHS["onnx_hf"], tmp_path / "model.onnx")
    monkeypatch.setattr(own_graph, limit, 0)
    assert not is_own(tmp_path / "model.onnx")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no FIFOs")
def test_what_is_no_regular_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "model.onnx")
    with pytest.raises(ValueError, match=r"model\.onnx: not a regular file: expected an ONNX graph"):
        open_onnx_engine(tmp_path / "model.onnx", name="onnx", threads=1)


def test_a_manifest_proves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(graph_probe, "SECONDS", 1)
    endless(tmp_path / "model.onnx", token=0)
    write_manifest(tmp_path, kind="onnx", fingerprint="f")
    with pytest.raises(
        ValueError, match=r"model\.onnx: opening it and reading a token takes more than the limit of 1 s"
    ):
        open_onnx_engine(tmp_path / "model.onnx", name="onnx", threads=1)
