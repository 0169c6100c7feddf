import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from transformers import GPT2Config, GPT2LMHeadModel

from chatmill.inference.model_loading import open_onnx_engine
from support.external_graphs import CONTEXT, GRAPHS, VOCAB_SIZE, logits_of, plain
from support.paths import SHARED

HERE = SHARED / "models/ort_genai"
EXTERNAL_CONTEXTS = {  # the context that the files beside them name
    "tiny-random-gpt2-fp32/past.onnx": 512,
    "tiny-random-lfm2-fp32/decoder.onnx": 512,
    "tiny-qwen35-cuda/decoder.onnx": 128,
}
PRECISION = {"half precision": 2e-2, "bfloat16": 1e-1}
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


@pytest.fixture(scope="module")
def plain_file(tmp_path_factory):
    """A graph without a past, for tests that do not change it."""
    file = tmp_path_factory.mktemp("plain") / "model.onnx"
    plain(file)
    return file


def open_file(file, **options):
    return open_onnx_engine(file, name="onnx", threads=1, **options)


def some_ids(count):
    return np.random.default_rng(count).integers(0, VOCAB_SIZE, count).tolist()


def greedy(engine, ids, count, *, recompute):
    ids = list(ids)
    logits = engine.append(ids)
    for _ in range(count):
        ids.append(int(logits.argmax()))
        if recompute:
            engine.rewind(0)
        logits = engine.append(ids if recompute else ids[-1:])
    return ids


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


@pytest.mark.skipif(not HERE.exists(), reason="graphs of onnxruntime-genai are not here")
@pytest.mark.parametrize(("file", "context"), EXTERNAL_CONTEXTS.items())
def test_graphs_from_elsewhere_generate_the_same_with_a_past_and_without(file, context):
    engine = open_file(HERE / file, context=context)
    for prompt in range(1, 21):
        engine.rewind(0)
        expected = greedy(engine, some_ids(prompt), 10, recompute=True)
        engine.rewind(prompt // 2)
        assert greedy(engine, expected[prompt // 2 : prompt], 10, recompute=False) == expected[prompt // 2 :]


@pytest.mark.skipif(not HERE.exists(), reason="graphs of onnxruntime-genai are not here")
def test_a_gpt2_from_elsewhere_gives_the_logits_of_its_weights_in_pytorch():
    file = HERE / "tiny-random-gpt2-fp32/past.onnx"
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(file).graph.initializer}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=512, n_embd=32, n_layer=5, n_head=4)).eval()
    found = {name: torch.tensor(weight) for name, weight in stored.items() if name in model.state_dict()}
    model.load_state_dict(found, strict=False)  # biases that are not stored are 0
    ids = some_ids(60)
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0].numpy()
    assert len(found) > 22
    np.testing.assert_allclose(open_file(file, context=512).sequence_logits(ids), expected, atol=1e-4)


def test_a_run_that_fails_is_one_sentence_and_leaves_what_was_read(plain_file):
    engine = open_file(plain_file, context=CONTEXT + 1)
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


def test_an_unknown_input_is_named_with_its_file(tmp_path):
    plain(tmp_path / "model.onnx", kind="bert", extra=["attention_mask", "token_type_ids"])
    model = onnx.load(tmp_path / "model.onnx")
    model.graph.input[1].name = "speaker_ids"
    for user in model.graph.node:
        user.input[:] = ["speaker_ids" if name == "attention_mask" else name for name in user.input]
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(
        ValueError, match=r"^\S+model\.onnx: input 'speaker_ids' \(tensor\(int64\), \['batch', 'time'\]\)"
    ):
        open_file(tmp_path / "model.onnx")
