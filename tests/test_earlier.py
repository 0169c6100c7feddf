"""The files of version 0.1.0 in tests/support/earlier: a model, its exports, its tokenizer's, and a saved chat."""

import json

import pytest

from chatmill.app.terminal.saved_chats import read_chat
from chatmill.conversation import Message, Part
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.model_loading import load_model
from chatmill.pipeline.manifest import check_manifest
from chatmill.tokenizer.formats.tokenizer_loading import load as load_tokenizer
from support.paths import ROOT

EARLIER = ROOT / "tests/support/earlier"
EXPECTED = json.loads((EARLIER / "expected.json").read_text())


@pytest.mark.parametrize("name", ["model", "onnx"])
def test_models_answer_as_they_did(name):
    loaded = load_model(EARLIER / name, "cpu", 1)
    session = ChatSession(*loaded)
    answers = {
        words: session.greedy_reply([Message.from_text("user", words)], 24)[0].text
        for words in EXPECTED["answers"][name]
    }
    assert answers == EXPECTED["answers"][name]
    assert check_manifest(EARLIER / name) == loaded.tokenizer.fingerprint


@pytest.mark.parametrize("name", ["", "tokenizer.bin", "tokenizer.pkl", "tokenizer.tiktoken", "tokenizer.json"])
def test_tokenizers_give_the_ids_that_they_gave(name):
    tokenizer = load_tokenizer(EARLIER / "tokenizer" / name)
    assert {text: tokenizer.encode(text) for text in EXPECTED["ids"]} == EXPECTED["ids"]


def test_a_saved_chat_is_read_to_the_word():
    call = (Part("call", "12*3"), Part("output", "36"), Part("text", "12 times 3 is 36."))
    assert read_chat(EARLIER / "chat.jsonl", 1) == [
        Message.from_text("system", "Be brief."),
        Message.from_text("user", "What is 12 times 3?"),
        Message("assistant", call),
        Message.from_text("user", "Thanks <|im_end|> é"),
        Message.from_text("assistant", "You're welcome!"),
    ]
