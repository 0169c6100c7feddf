"""What the stages after training make of models that no other library knows."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import benchmark
import evaluate
import export_onnx
from chatmill.app.named_models import default_model
from chatmill.checkpoints.configuration import ByteHeadShape, Chunking, read_config, to_hugging_face
from chatmill.conversation import Message, Record, render
from chatmill.engines.engine import ONNX_FILES
from chatmill.model.chat_model import ChatModel
from chatmill.model.checkpoint_loading import load_chat_model
from chatmill.pipeline.manifest import check_manifest
from chatmill.soft_tokenizer.byte_head import byte_head_shape, spell_vocabulary
from support.paths import ANY_FOLDER
from support.tiny import CONFIG, VOCABULARY, random_model, write_model
from support.training_runs import write_tokens

CHUNKED = replace(CONFIG, chunking=Chunking())
TALK = render([Message.from_text("user", "How are you?"), Message.from_text("assistant", "Fine, naïvely.")])
EVALUATE = {
    "talk_prompts": 1,
    "max_tokens": 4,
    "threads": 1,
    "conversations": 5,
    "skill_prompts": 1,
    "engine_prompts": 1,
    "stride": None,
    "compare_tokenizers": [],
}
BENCHMARK = {"prompt_tokens": [8, 40], "new_tokens": 4, "repeats": 2, "threads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that works on chunks, and what export_onnx makes of it."""
    folder = tmp_path_factory.mktemp("parts")
    export_onnx.main(write_model(folder / "model", CHUNKED), folder / "onnx", quantize=["int8"])
    (folder / "test.jsonl").write_text(Record("talk", "talk/1", TALK).to_json() * 3, encoding="utf-8")
    (folder / "free.txt").write_text("Hello?\n")
    (folder / "exports").mkdir()
    return write_tokens(folder)


@pytest.mark.parametrize(
    "parts",
    [
        {"chunking": Chunking()},
        {"chunking": Chunking(boundaries="fixed", rate=3, ngrams=(5,))},
        {"byte_head": ByteHeadShape(ends=2, controls=8, longest=9)},
        {"chunking": Chunking(), "byte_head": ByteHeadShape()},
    ],
)
def test_a_config_json_says_what_a_qwen3_has_not(parts):
    config = replace(CONFIG, **parts)
    content = json.loads(json.dumps(to_hugging_face(config)))
    assert content["model_type"] == "chatmill" and read_config(content) == config


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"chunking": {"boundaries": "guessed"}}, "Chunking: Input should be 'learned', 'autoencoder' or 'fixed'"),
        ({"byte_head": {"width": "wide"}}, "ByteHeadShape: Input should be a valid integer"),
    ],
)
def test_a_config_json_of_other_parts_is_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        read_config(to_hugging_face(CHUNKED) | parts)


def test_a_spelling_with_symbols_that_there_are_not_is_refused(tmp_path):
    config = replace(CONFIG, byte_head=byte_head_shape(VOCABULARY))
    model = random_model(config)
    model.byte_head.set_spelling(spell_vocabulary(VOCABULARY))
    model.byte_head.spelled[3, 0] = 5000
    with pytest.raises(ValueError, match=r"byte_head\.spelled: expected symbols from -1 to"):
        model.byte_head.check(tmp_path)


def test_why_there_is_no_graph_is_written_down(folder):
    formats = json.loads((folder / "onnx/formats.json").read_text())
    assert formats.keys() == ONNX_FILES.keys() and "chunking: a graph has neither" in formats["onnx"]["reason"]
    assert check_manifest(folder / "onnx") == VOCABULARY.fingerprint


def test_it_is_evaluated_by_pytorch_alone_and_its_chunks_are_told(folder, tmp_path):
    inputs = (folder / name for name in ("test.jsonl", "test.jsonl", "free.txt", "none", "tokens", "model", "onnx"))
    evaluate.main(*inputs, ANY_FOLDER, tmp_path / "samples.jsonl", tmp_path / "evaluate.json", **EVALUATE)
    metrics = json.loads((tmp_path / "evaluate.json").read_text())
    sample, *_ = map(json.loads, (tmp_path / "samples.jsonl").read_text().splitlines())
    assert list(metrics["engines"]) == ["pytorch"] and metrics["chunks"]["tokens"] >= 1
    assert sum(sample["chunk_bytes"]) == len(f"{sample['prompt']}\n{sample['answer']}".encode())


@pytest.mark.slow
def test_it_is_timed_without_a_limit(folder, tmp_path):
    inputs = (folder / name for name in ("test.jsonl", "exports", "model", "onnx"))
    benchmark.main(*inputs, tmp_path / "benchmark.json", **BENCHMARK)
    metrics = json.loads((tmp_path / "benchmark.json").read_text())
    assert "limit" not in metrics and metrics["pytorch"]["cache"]["40"]["token_ms"]["p50"] > 0


def test_chatting_passes_by_an_export_without_a_graph(folder, tmp_path, monkeypatch):
    (tmp_path / "data/export").mkdir(parents=True)
    (tmp_path / "data/export/onnx").symlink_to(folder / "onnx")
    (tmp_path / "data/model").symlink_to(folder / "model")
    monkeypatch.chdir(tmp_path)
    assert default_model() == Path("data/model")


def test_a_model_of_chunks_is_read_as_it_was_written(folder):
    model, _ = load_chat_model(folder / "model", torch.device("cpu"))
    ids = torch.arange(20)[None]
    assert isinstance(model, ChatModel) and model.config == CHUNKED
    torch.testing.assert_close(model(ids), random_model(CHUNKED)(ids))
