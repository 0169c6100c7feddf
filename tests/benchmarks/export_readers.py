"""The programs that the files of an export are for."""

import json
import pickle
import shutil
import struct
import subprocess
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import tiktoken
from sentencepiece import SentencePieceProcessor
from tiktoken.load import load_tiktoken_bpe
from tokenizers import Regex, Tokenizer
from tokenizers.pre_tokenizers import Split

from chatmill.tokenizer.encoding.backends import choose_backend
from chatmill.tokenizer.formats.tokenizer_loading import read_vocabulary
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary
from support.original_tokenizers import Encode, ids_of
from support.paths import ROOT


def open_readers(out: Path, vocabulary: Vocabulary, exact: set[str], scratch: Path) -> dict[str, Callable[[], Encode]]:
    """The program for each file of an export."""

    def ranks() -> Encode:
        about = json.loads((out / "tokenizer.tiktoken.json").read_bytes())
        values = {"pat_str": about["pattern"], "special_tokens": about["special_tokens"]}
        ranks = load_tiktoken_bpe(str(out / "tokenizer.tiktoken"))
        return _all_special(tiktoken.Encoding(about["name"], mergeable_ranks=ranks, **values))

    readers: dict[str, Callable[[], Encode]] = {
        "tokenizer.json": lambda: ids_of(Tokenizer.from_file(str(out / "tokenizer.json"))),
        "tokenizer.pkl": lambda: _all_special(pickle.loads((out / "tokenizer.pkl").read_bytes())),
        "tokenizer.tiktoken": ranks,
        "tokenizer.model": lambda: SentencePieceProcessor(model_file=str(out / "tokenizer.model")).encode,
        "tokenizer.bin": lambda: _one_by_one(choose_backend(read_vocabulary(out / "tokenizer.bin")).encode_one),
    }
    if "tokenizer.llama2c.bin" in exact and shutil.which("cc"):
        readers["tokenizer.llama2c.bin"] = lambda: _merging_by_score(out / "tokenizer.llama2c.bin", vocabulary, scratch)
    return {name: reader for name, reader in readers.items() if (out / name).exists()}


def _one_by_one(encode: Callable[[str], list[int]]) -> Encode:
    return lambda texts: [encode(text) for text in texts]


def _all_special(encoding: tiktoken.Encoding) -> Encode:
    return _one_by_one(lambda text: encoding.encode(text, allowed_special="all"))


def _merging_by_score(file: Path, vocabulary: Vocabulary, scratch: Path) -> Encode:
    """tests/support/reader.c, which is given the pieces of each text."""
    program = scratch / "reader"
    subprocess.run(["cc", "-O2", "-o", program, ROOT / "tests/support/reader.c"], check=True)
    mode = "greedy-bytes" if vocabulary.spelling == "bytes" else "greedy-characters"
    split = Split(Regex(vocabulary.pattern or r"[\s\S]+"), "removed", invert=True)

    def encode(texts: list[str]) -> list[list[int]]:
        cut = [[piece.encode() for piece, _ in split.pre_tokenize_str(text)] for text in texts]
        data = b"".join(struct.pack("<I", len(piece)) + piece for pieces in cut for piece in pieces)
        command = [program, file, "1", str(len(vocabulary.tokens)), mode]
        numbers = iter(np.frombuffer(subprocess.run(command, input=data, stdout=-1, check=True).stdout, "<u4").tolist())
        return [[i for _ in pieces for i in islice(numbers, next(numbers))] for pieces in cut]

    return encode
