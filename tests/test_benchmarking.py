import pytest

import export_onnx
from chatmill.benchmarking import Case, make_cases, token_times_ms, weight_bytes
from support.scripted import ScriptedEngine
from support.tiny import random_model, write_model


def engine(name="onnx"):
    scripted = ScriptedEngine([1] * 20, vocab_size=8, context=50)
    scripted.name = name
    return scripted


def test_cache_reads_each_token_once_and_recomputing_all_of_them_each_time():
    scripted = engine()
    assert len(token_times_ms(Case(scripted, "cache", [5, 6, 7]), new_tokens=2)) == 3
    assert [len(ids) for ids in scripted.received_ids] == [3, 1, 1]
    scripted.received_ids.clear()
    assert len(token_times_ms(Case(scripted, "recompute", [5, 6, 7]), new_tokens=2)) == 4
    assert [len(ids) for ids in scripted.received_ids] == [3, 4, 5, 6]


def test_engines_take_turns_at_each_prompt():
    engines = [engine("onnx"), engine("onnx_int8")]
    cases = [(case.engine.name, case.mode, len(case.prompt)) for case in make_cases(engines, [[1], [1, 2]])]
    turns = [("onnx", "cache"), ("onnx_int8", "cache"), ("onnx", "recompute")]
    assert cases == [(*turn, length) for length in (1, 2) for turn in turns]


@pytest.fixture(scope="module")
def onnx(tmp_path_factory):
    """Graphs of a tiny model."""
    folder = tmp_path_factory.mktemp("limits")
    export_onnx.main(write_model(folder / "model"), folder / "onnx", quantize=["int8", "int4"])
    return folder / "onnx"


def test_float32_graphs_read_every_weight_once(onnx):
    weights = sum(4 * weight.numel() for weight in random_model().parameters())
    assert 0 <= weight_bytes(onnx / "model_shared.onnx") - weights < 500  # shapes and axes
    assert 0 <= weight_bytes(onnx / "model.onnx") - weights < 500


def test_quantized_graphs_read_a_scale_for_every_32_weights(onnx):
    matrices, norms = (
        sum(weight.numel() for weight in random_model().parameters() if (weight.ndim == 2) == chosen)
        for chosen in (True, False)
    )
    for name, bits in (("int8", 8), ("int4", 4)):
        expected = matrices * (bits / 8 + 4 / 32) + 4 * norms
        assert 0 <= weight_bytes(onnx / f"model_shared_{name}.onnx") - expected < 500
