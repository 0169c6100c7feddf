import numpy as np
import pytest

from chatmill.app.cli import main
from chatmill.conversation import Message
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.model_loading import load_model
from chatmill.tokenizer.formats.tokenizer_loading import read_vocabulary
from chatmill.tokenizer.types import bpe
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens, write_folder
from support.external_folder import IDS, write_external
from support.external_models import logits_of, transformers
from support.tiny import write_model

SMALL = ("--width", "64", "--layers", "1", "--features", "512", "--steps", "30", "--threads", "1")
TEXTS = ["Tell me of the quick brown fox that jumps over the lazy dog, over and over. " * 20]


def run(model, *arguments):
    return main(["soft-tokenizer", "--model", str(model), *SMALL, *map(str, arguments)])


@pytest.mark.parametrize(("family", "tied"), [("llama", False), ("mistral", True), ("qwen2", True), ("qwen3", False)])
def test_transformers_loads_the_models_and_they_say_nearly_the_same(tmp_path, capsys, family, tied):
    theirs = write_external(tmp_path / "model", family, tie_word_embeddings=tied)
    assert run(tmp_path / "model", "--output", tmp_path / "soft") == 0
    again, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "soft", output_loading_info=True)
    assert type(again) is type(theirs) and not any(report.values())
    before, after = logits_of(theirs, IDS), logits_of(again, IDS)
    assert np.corrcoef(before.ravel(), after.ravel())[0, 1] > 0.9 and not np.allclose(before, after)
    assert "variance explained" in capsys.readouterr().out


def test_a_model_is_given_another_tokenizer_and_chats_with_it(tmp_path, capsys):
    folder, chats = write_model(tmp_path / "model"), tmp_path / "chats.jsonl"
    chats.write_text('{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}\n')
    write_folder(add_special_tokens(bpe.train(TEXTS, 300, bpe.Settings()), []), tmp_path / "other")
    options = ("--tokenizer", tmp_path / "other", "--data", chats, "--output", tmp_path / "swapped")
    assert run(folder, *options) == 0
    loaded = load_model(tmp_path / "swapped", device="cpu", threads=1)
    assert loaded.tokenizer.fingerprint == read_vocabulary(tmp_path / "other").fingerprint
    message, _ = ChatSession(*loaded).greedy_reply([Message.from_text("user", "Hi")], 4)
    assert message.role == "assistant"
    shown = capsys.readouterr().out
    assert "its own table" in shown and "made from bytes" in shown and "with other" in shown


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    folder = write_model(tmp_path / "model")
    for name in ("first", "second"):
        assert run(folder, "--output", tmp_path / name) == 0
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "second"))
    assert first == second
