import pytest

import export_onnx
from chatmill.benchmarking.latency import Workload, weight_bytes
from chatmill.checkpoints.configuration import ModelConfig, to_hugging_face
from support.tiny import random_model, write_model


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


def test_flops_of_a_prompt_are_those_of_each_matrix_and_each_attended_position():
    config = to_hugging_face(ModelConfig.from_depth(2, vocab_size=64, context=32))
    width, hidden, heads, size = 128, config["intermediate_size"], 2, 64
    matrices = 2 * width * heads * size + 2 * width * config["num_key_value_heads"] * size + 3 * width * hidden
    looks = 1 + 2 + 3
    expected = 2 * (2 * (3 * matrices + looks * 2 * heads * size) + width * 64)
    assert Workload(config, {}).prompt_flops(3) == expected
