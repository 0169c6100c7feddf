import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from chatmill.inference.model_loading import open_onnx_engine
from support.external_graphs import CONTEXT, GRAPHS, VOCAB_SIZE, logits_of, plain

PRECISION = {"half precision": 2e-2}
each_graph = pytest.mark.parametrize("name", GRAPHS)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Each graph, exported and opened when it is first used."""
    folder, engines = tmp_path_factory.mktemp("graphs"), {}

    def engine(name):
        if name not in engines:
            file = folder / f"{len(engines)}.onnx"
            GRAPHS[name][1](file)
            engines[name] = open_onnx_engine(file, name=name, threads=1, context=CONTEXT)
        engines[name].rewind(0)
        return engines[name]

    return engine


def open_file(file, **options):
    return open_onnx_engine(file, name="onnx", threads=1, **options)


def graph_file(folder, inputs, outputs):
    """A graph of input_ids and other inputs, that returns the same zeros (1, 2, 1, 8) for each output."""
    shapes = {"input_ids": ["batch", "time"]} | inputs
    reads = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    returns = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, 1, 8]) for name in outputs]
    nodes = [helper.make_node("ConstantOfShape", ["shape"], [name]) for name in outputs]
    shape = helper.make_tensor("shape", TensorProto.INT64, [4], [1, 2, 1, 8])
    graph = helper.make_graph(nodes, "zeros", reads, returns, [shape])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def some_ids(count):
    return np.random.default_rng(count).integers(0, VOCAB_SIZE, count).tolist()


@each_graph
def test_scores_are_the_logits_of_the_original(opened, name):
    engine, ids = opened(name), some_ids(CONTEXT)
    scores = engine.sequence_logits(ids)
    assert (scores.dtype, engine.length, engine.context) == (np.float32, 0, CONTEXT)
    np.testing.assert_allclose(scores, logits_of(GRAPHS[name][0], ids), atol=PRECISION.get(name, 1e-4))


@each_graph
@settings(max_examples=6)
@given(steps=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 30)), min_size=1, max_size=4))
def test_any_appends_and_rewinds_give_the_logits_of_the_whole_sequence(opened, name, steps):
    engine, ids = opened(name), []
    for count, back in steps:
        length = max(0, len(ids) - back)
        engine.rewind(length)
        ids = ids[:length] + some_ids(count)
        logits = engine.append(ids[length:])
        assert engine.length == len(ids)
    np.testing.assert_allclose(logits, logits_of(GRAPHS[name][0], ids)[-1], atol=PRECISION.get(name, 1e-4))


def test_a_run_that_fails_is_one_sentence_and_leaves_what_was_read(tmp_path):
    plain(tmp_path / "model.onnx")
    engine = open_file(tmp_path / "model.onnx", context=CONTEXT + 1)
    engine.append(some_ids(CONTEXT))
    with pytest.raises(ValueError, match=r"model\.onnx: ONNX Runtime cannot run it: .*out of data bounds.*") as error:
        engine.append([1])
    assert "\n" not in str(error.value)
    engine.rewind(5)
    np.testing.assert_allclose(engine.append([7]), logits_of("gpt2", [*some_ids(CONTEXT)[:5], 7])[-1], atol=1e-4)


@pytest.mark.parametrize("content", [b"", b"no graph", b"\x08\x07"])
def test_a_file_that_is_no_graph_is_named(tmp_path, content):
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(ValueError, match=r"^\S+model\.onnx: ONNX Runtime cannot read it: .* failed:.*\.$"):
        open_file(tmp_path / "model.onnx")


PAST = "past_key_values.0.key"


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("speaker_ids", ["batch", "time"], "is not recognised: expected input_ids, attention_mask, "),
        (PAST, ["batch", 2, "past", "D"], r"is \['batch', 2, 'past', 'D'\]: expected \(batch, heads, past, size\)"),
        (PAST, ["batch", "past", 16], r"is \['batch', 'past', 16\]: expected \(batch, heads, past, size\)"),
    ],
)
def test_an_input_that_is_not_as_expected_is_named_with_its_file(tmp_path, name, shape, expected):
    with pytest.raises(ValueError, match=rf"^\S+model\.onnx: input '{name}' {expected}"):
        open_file(graph_file(tmp_path, {name: shape}, ["logits", "present.0.key"]))


@pytest.mark.parametrize(("inputs", "outputs"), [({}, ["x"]), ({PAST: ["batch", 2, "past", 8]}, ["logits"])])
def test_a_graph_without_logits_or_a_present_is_told_with_what_it_has(tmp_path, inputs, outputs):
    with pytest.raises(ValueError, match=rf"model\.onnx: expected .* the outputs logits.*, got .*, {outputs[-1]}$"):
        open_file(graph_file(tmp_path, inputs, outputs))


def test_a_present_that_has_lost_tokens_is_refused(tmp_path):
    engine = open_file(graph_file(tmp_path, {PAST: ["batch", 2, "past", 8]}, ["logits", "present.0.key"]))
    with pytest.raises(
        ValueError, match=r"output 'present.0.key': expected a present of 2 tokens, got the shape \(1, 2, 1, 8"
    ):
        engine.append([1, 2])
