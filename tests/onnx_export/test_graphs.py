import json
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from chatmill.checkpoints.configuration import RopeScaling, Variant, to_hugging_face
from chatmill.engines.onnx_engine import graph_bytes
from chatmill.onnx_export import graphs as onnx_graph
from support.tiny import CONFIG, random_model

SHAPE = to_hugging_face(CONFIG)
METADATA = {"fingerprint": "f", "template": "chatml"}
MODEL = random_model()
WEIGHTS = {name: weight.numpy() for name, weight in MODEL.state_dict().items()}
PASTS = [0, 1, 7, 500]
TOLERANCE = 1e-4


def session(graph):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(graph.SerializeToString(), options)


@pytest.fixture(scope="module")
def portable():
    return session(onnx_graph.Portable(WEIGHTS, SHAPE).build(METADATA))


@pytest.fixture(scope="module")
def shared():
    return session(onnx_graph.Shared(WEIGHTS, SHAPE).build(METADATA))


def some_ids(batch, time):
    return np.random.default_rng(batch * time).integers(0, CONFIG.vocab_size, (batch, time))


@torch.inference_mode()
def expected(ids, **options):
    return MODEL(torch.from_numpy(ids), **options).numpy()


def names(kind):
    return [f"{kind}.{layer}.{part}" for layer in range(CONFIG.num_hidden_layers) for part in ("key", "value")]


def buffers(batch, length):
    shape = (batch, CONFIG.num_key_value_heads, length, CONFIG.head_dim)
    return {name: np.zeros(shape, np.float32) for name in names("past_key_values")}


def run_portable(portable, ids, past, mask=None, positions=None):
    """The logits, and the past for the next call."""
    batch, time = ids.shape
    length = past["past_key_values.0.key"].shape[2]
    feed = {
        "input_ids": ids,
        "attention_mask": np.ones((batch, length + time), np.int64) if mask is None else mask,
        "position_ids": np.tile(np.arange(length, length + time), (batch, 1)) if positions is None else positions,
    }
    logits, *present = portable.run(["logits", *names("present")], feed | past)
    return logits, dict(zip(past, present, strict=True))


class SharedCache:
    """One cache, bound to past and present."""

    def __init__(self, session, batch):
        self.session, self.batch, self.binding = session, batch, session.io_binding()
        self.binding.bind_output("logits")
        for name, zeros in buffers(batch, CONFIG.max_position_embeddings).items():
            buffer = onnxruntime.OrtValue.ortvalue_from_numpy(zeros)
            self.binding.bind_ortvalue_input(name, buffer)
            self.binding.bind_ortvalue_output(name.replace("past_key_values", "present"), buffer)

    def run(self, ids, past, keep):
        total = np.broadcast_to(past + ids.shape[1], self.batch).astype(np.int32)
        self.binding.bind_cpu_input("input_ids", np.ascontiguousarray(ids))
        self.binding.bind_cpu_input("seqlens_k", total - 1)
        self.binding.bind_cpu_input("total_sequence_length", np.array(total.max()))
        self.binding.bind_cpu_input("logits_to_keep", np.array([keep]))
        self.binding.bind_output("logits")
        self.session.run_with_iobinding(self.binding)
        return self.binding.get_outputs()[0].numpy()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("past", PASTS)
def test_portable_logits_equal_pytorch_after_any_past(portable, past, batch):
    ids, cache = some_ids(batch, past + 9), buffers(batch, 0)
    if past:
        _, cache = run_portable(portable, ids[:, :past], cache)
    logits, _ = run_portable(portable, ids[:, past:], cache)
    np.testing.assert_allclose(logits, expected(ids)[:, past:], atol=TOLERANCE)


def test_portable_rows_padded_on_the_left_equal_rows_without_padding(portable):
    ids = some_ids(2, 12)
    mask = np.ones((2, 12), np.int64)
    mask[0, :5] = 0
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
    logits, _ = run_portable(portable, ids, buffers(2, 0), mask, positions)
    np.testing.assert_allclose(logits[0, 5:], expected(ids[:1, 5:])[0], atol=TOLERANCE)
    np.testing.assert_allclose(logits[1], expected(ids[1:])[0], atol=TOLERANCE)
    assert np.isfinite(logits).all()


def check_shared(cache, ids, past):
    """Logits after a past equal PyTorch's; several rows after a past are read one id at a time."""
    step = 1 if past and len(ids) > 1 else ids.shape[1] - past
    for start in range(past, ids.shape[1], step):
        logits = cache.run(ids[:, start : start + step], start, step)
        np.testing.assert_allclose(logits, expected(ids)[:, start : start + step], atol=TOLERANCE)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("past", PASTS)
def test_shared_logits_equal_pytorch_after_any_past(shared, past, batch):
    ids, cache = some_ids(batch, past + 9), SharedCache(shared, batch)
    if past:
        cache.run(ids[:, :past], 0, 1)
    check_shared(cache, ids, past)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("past", PASTS)
def test_shared_cache_is_rewound_by_saying_so(shared, past, batch):
    ids, cache = some_ids(batch, past + 9), SharedCache(shared, batch)
    cache.run(np.hstack([ids[:, :past], some_ids(batch, 30)]), 0, 1)
    check_shared(cache, ids, past)


def test_shared_rows_of_a_batch_go_on_from_lengths_of_their_own(shared):
    ids, cache, lengths = some_ids(3, 20), SharedCache(shared, 3), np.array([19, 7, 1])
    cache.run(ids, 0, 1)
    following = np.take_along_axis(ids, lengths[:, None], axis=1)
    logits = cache.run(following, lengths, 1)[:, 0]
    np.testing.assert_allclose(logits, expected(ids)[range(3), lengths], atol=TOLERANCE)


def test_a_head_of_its_own_is_used():
    head = np.random.default_rng(1).standard_normal(WEIGHTS["model.embed_tokens.weight"].shape, np.float32)
    graph = onnx_graph.Portable(WEIGHTS | {"lm_head.weight": head}, SHAPE).build(METADATA)
    logits, _ = run_portable(session(graph), np.array([[1, 2, 3]]), buffers(1, 0))
    tied, _ = run_portable(
        session(onnx_graph.Portable(WEIGHTS, SHAPE).build(METADATA)), np.array([[1, 2, 3]]), buffers(1, 0)
    )
    hidden = np.linalg.lstsq(WEIGHTS["model.embed_tokens.weight"], tied[0].T, rcond=None)[0]
    np.testing.assert_allclose(logits[0], (head @ hidden).T, atol=1e-3)


LLAMA3 = RopeScaling(factor=4.0, original_max_position_embeddings=32)
BIASES = {"qkv_bias": True, "output_bias": True}
VARIANTS = {
    "llama": Variant(qk_norm=False),
    "llama-scaled": Variant(qk_norm=False, rope_scaling=LLAMA3),
    "llama-linear": Variant(qk_norm=False, rope_scaling=RopeScaling(factor=2.5)),
    "llama-biases": Variant(qk_norm=False, **BIASES, mlp_bias=True),
    "mistral": Variant(qk_norm=False, sliding_window=6),
    "qwen2": Variant(qk_norm=False, qkv_bias=True),
    "qwen2-window": Variant(qk_norm=False, qkv_bias=True, sliding_window=6),
    "qwen3-biases": Variant(**BIASES, rope_scaling=LLAMA3),
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_equal_pytorch_after_any_past(variant, tied):
    model = random_model(replace(CONFIG, variant=VARIANTS[variant], tie_word_embeddings=tied))
    weights = {name: weight.numpy() for name, weight in model.state_dict().items()}
    graphs = (build(weights, to_hugging_face(model.config)) for build in (onnx_graph.Portable, onnx_graph.Shared))
    graph, shared = (session(built.build(METADATA)) for built in graphs)
    cache = SharedCache(shared, 1)
    ids, past = some_ids(1, 60), buffers(1, 0)
    with torch.inference_mode():
        expected = model(torch.from_numpy(ids)).numpy()
    for start, end in [(0, 40), (40, 41), (41, 60)]:
        logits, past = run_portable(graph, ids[:, start:end], past)
        np.testing.assert_allclose(logits, expected[:, start:end], atol=TOLERANCE)
        logits = cache.run(ids[:, start:end], start, end - start)
        np.testing.assert_allclose(logits, expected[:, start:end], atol=TOLERANCE)


@pytest.mark.parametrize("build", [onnx_graph.Portable, onnx_graph.Shared])
def test_graphs_carry_their_origin_and_the_same_bytes_each_time(build, tmp_path):
    for name in ("a", "b"):
        onnx_graph.write(build(WEIGHTS, SHAPE).build(METADATA), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    properties = {entry.key: entry.value for entry in onnx.load(tmp_path / "a").metadata_props}
    assert json.loads(properties.pop("chatmill.config")) == SHAPE
    assert properties == {
        "chatmill.context": "640",
        "chatmill.fingerprint": "f",
        "chatmill.format": "1",
        "chatmill.template": "chatml",
    }


@pytest.mark.parametrize("precision", list(onnx_graph.GRAPHS))
def test_graphs_of_large_models_share_their_weights(precision, tmp_path, monkeypatch):
    parts = precision, WEIGHTS, SHAPE, METADATA
    for name, least in (("small", 10**9), ("large", 0)):
        monkeypatch.setattr(onnx_graph, "LARGE", least)
        (tmp_path / name).mkdir()
        onnx_graph.write_graphs(*parts, tmp_path / name)
    for file in onnx_graph.GRAPHS[precision][:2]:
        small, large = onnx.load(tmp_path / "small" / file), onnx.load(tmp_path / "large" / file)
        onnx.external_data_helper.convert_model_from_external_data(large)
        for tensor in large.graph.initializer:
            tensor.ClearField("data_location")
        assert large == small
        assert graph_bytes(tmp_path / "large" / file) > graph_bytes(tmp_path / "small" / file) * 0.99
    small, large = (sum(file.stat().st_size for file in (tmp_path / name).iterdir()) for name in ("small", "large"))
    assert large < small * 0.7


def test_portable_graph_is_standard_onnx_with_hugging_face_names(portable):
    graph = onnx_graph.Portable(WEIGHTS, SHAPE).build(METADATA)
    onnx.checker.check_model(graph, full_check=True)
    assert {node.domain for node in graph.graph.node} == {""}
    inputs = [node.name for node in portable.get_inputs()]
    assert inputs == ["input_ids", "attention_mask", "position_ids", *names("past_key_values")]
    assert [node.name for node in portable.get_outputs()] == ["logits", *names("present")]


QUANTIZED = {
    "int8": (onnx_graph.Shared, 8, 0.05),
    "int4": (onnx_graph.Shared, 4, 0.5),
    "int8_dynamic": (partial(onnx_graph.Shared, is_dynamic=True), 8, 0.05),
}


@pytest.mark.parametrize("variant", [Variant(), Variant(**BIASES, mlp_bias=True)])
@pytest.mark.parametrize("precision", QUANTIZED)
def test_quantized_graph_is_near_the_model(precision, variant):
    (builder, bits, error), ids = QUANTIZED[precision], some_ids(1, 24)
    model = random_model(replace(CONFIG, variant=variant))
    weights = {name: weight.numpy() for name, weight in model.state_dict().items()}
    graph = builder(weights, to_hugging_face(model.config), bits).build(METADATA)
    logits = SharedCache(session(graph), 1).run(ids, 0, 24)
    with torch.inference_mode():
        expected = model(torch.from_numpy(ids)).numpy()
    assert np.abs(logits - expected).mean() < error * np.abs(expected).mean()
