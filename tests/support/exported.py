"""Small tokenizers of each type, and all of their exports."""

import json
import random
from types import SimpleNamespace

import export_tokenizer
import train_tokenizer
from chatmill.conversation import Message, Record, render
from chatmill.tokenizer.formats.tokenizer_loading import load
from support.paths import ANY_FOLDER
from support.texts import WORDS

TYPES = {
    "whitespace": ("whitespace", {}),
    "char": ("char", {}),
    "byte": ("byte", {}),
    "bpe": ("bpe", {}),
    "wordpiece": ("wordpiece", {}),
    "unigram": ("sentencepiece", {"algorithm": "unigram"}),
    "sentencepiece-bpe": ("sentencepiece", {"algorithm": "bpe"}),
}
FORMATS = ["binary", "llama2c", "tiktoken_pickle", "tiktoken", "huggingface", "sentencepiece"]


def write_chat(file):
    """Write conversations of a few thousand words."""
    pick = random.Random(1)
    names = ["".join(pick.choices("abdeghiklmnoprstuvwz", k=pick.randint(3, 9))) for _ in range(300)]
    with file.open("w", encoding="utf-8") as lines:
        for number in range(150):
            texts = [" ".join(pick.choices([*WORDS, *names], k=12)) for _ in range(2)]
            talk = [Message.from_text(role, text) for role, text in zip(("user", "assistant"), texts, strict=True)]
            lines.write(Record("talk", f"talk/{number}", render(talk)).to_json())


def export(name, folder):
    """Train a tokenizer of a type and export it in a folder."""
    write_chat(folder / "chat.jsonl")
    kind, section = TYPES[name]
    source, out = folder / "original", folder / "tokenizer"
    parameters = {"type": kind, "vocab_size": 704, "special_tokens": ["<|mood|>"], kind: section}
    train_tokenizer.main(folder / "chat.jsonl", ANY_FOLDER, ANY_FOLDER, source, initial=None, parameters=parameters)
    export_tokenizer.main(source, out, formats=FORMATS)
    formats = json.loads((out / "formats.json").read_text())
    return SimpleNamespace(name=name, source=source, out=out, original=load(source), formats=formats)
