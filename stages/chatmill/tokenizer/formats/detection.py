"""Recognise the format of a tokenizer's file by its content: the suffix does not decide."""

import json
import re
from pathlib import Path
from typing import Any, Literal

from chatmill.tokenizer.formats.binary import MAGIC
from chatmill.tokenizer.formats.legacy_files import VOCAB_TXT, merges_file_of

TokenizerFormat = Literal[
    "tokenizer_json", "vocab_and_merges", "vocab_txt", "sentencepiece", "ranks", "pickle", "binary"
]
SUFFIXES: dict[str, TokenizerFormat] = {  # of damaged files, whose content says nothing
    ".json": "tokenizer_json",
    ".model": "sentencepiece",
    ".bin": "binary",
    ".tiktoken": "ranks",
    ".pkl": "pickle",
}
EXPECTED = (
    "a folder, a tokenizer.json, a vocabulary with merges beside it, a SentencePiece model, ranks of tiktoken, BERT's "
    "vocab.txt, or a .pkl or .bin that chatmill wrote"
)
_RANK = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\s*")


def detect_format(file: Path) -> TokenizerFormat:
    """The format of a file. Raises ValueError with what it seems to be for others."""
    data = file.read_bytes()
    start = data[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()
    if MAGIC in data[-256:]:
        return "binary"
    if data[:1] == b"\x80":
        return "pickle"
    if start[:1] == b"{":
        return _detect_json(file, data)
    if _RANK.fullmatch(start.split(b"\n")[0]):
        return "ranks"
    if file.name == VOCAB_TXT or re.search(rb"^\[UNK\]\r?$", data, re.MULTILINE):
        return "vocab_txt"
    if data[:1] == b"\n" and b"\0" in data[: 1 << 16]:
        return "sentencepiece"
    if (guess := _guess(data, start)) is None and file.suffix in SUFFIXES:
        return SUFFIXES[file.suffix]
    raise ValueError(
        f"{file}: not a tokenizer, but {guess or f'a file that begins with {start[:24]!r}'}: expected {EXPECTED}"
    )


def _detect_json(file: Path, data: bytes) -> TokenizerFormat:
    try:
        content: dict[str, Any] = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: not JSON, although it begins like it: {error!s:.200}") from error
    if isinstance(content.get("vocab"), list) and "config" in content:
        raise ValueError(f"{file}: Mistral's tekken.json, which is not supported: use the model's tokenizer.json")
    if content and all(type(i) is int for i in content.values()):
        if merges_file_of(file) is None:
            raise ValueError(f"{file}: a vocabulary without its merges: put them beside it, such as merges.txt")
        return "vocab_and_merges"
    return "tokenizer_json"


def _guess(data: bytes, start: bytes) -> str | None:
    """What another file is; None if that is unknown."""
    if not data:
        return "an empty file"
    if start.startswith(b"version https://git-lfs"):
        return "a pointer of Git LFS, whose content `git lfs pull` fetches"
    if start.startswith(b"#version") or re.match(rb"\S+ \S+\r?\n\S+ \S+\r?\n", start):
        return "merges without their vocabulary beside them, such as vocab.json"
    if start.startswith(b"PK\3\4"):
        return "a zip archive, such as weights of PyTorch"
    if start.lower().startswith((b"<!doctype", b"<html")):
        return "a web page"
    return None
