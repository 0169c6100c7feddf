"""Load a tokenizer from any supported file, whose format follows from its content: the suffix does not decide."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from chatmill.pipeline.manifest import read_json
from chatmill.tokenizer.encoding.backends import choose_backend
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.binary import MAGIC, has_footer, read_binary
from chatmill.tokenizer.formats.gguf_files import is_gguf, read_gguf, vocabulary_of
from chatmill.tokenizer.formats.tiktoken_files import (
    MERGES_FILES,
    VOCAB_TXT,
    description_file,
    merges_file_of,
    read_tiktoken,
    read_tiktoken_pickle,
    read_vocab_and_merges,
    read_vocab_txt,
    vocabulary_file_of,
)
from chatmill.tokenizer.vocabulary.preprocessing import NORMALIZATION_SAMPLES, adds_prefix_space, drop_harmless_steps
from chatmill.tokenizer.vocabulary.sentencepiece_model import read_sentencepiece_model
from chatmill.tokenizer.vocabulary.tokenizer_folder import DESCRIPTION, read_folder
from chatmill.tokenizer.vocabulary.tokenizer_json import from_json
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary, check_vocabulary, to_special_handling

READERS: dict[str, Callable[[Path], Vocabulary]] = {  # by format
    "gguf": lambda file: vocabulary_of(read_gguf(file).fields),
    "tokenizer_json": lambda file: from_json(read_json(file)),
    "vocab_and_merges": read_vocab_and_merges,
    "sentencepiece": read_sentencepiece_model,
    "ranks": read_tiktoken,
    "pickle": read_tiktoken_pickle,
    "binary": read_binary,
    "vocab_txt": read_vocab_txt,
}
IN_FOLDERS = ("tokenizer.json", "tokenizer.model", *MERGES_FILES, VOCAB_TXT)
EXPECTED = (
    "a folder, a tokenizer.json, a vocabulary with merges beside it, a SentencePiece model, ranks of tiktoken, BERT's "
    "vocab.txt, a GGUF file, or a .pkl or .bin that chatmill wrote"
)
_RANK = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\s*")


def detect_format(file: Path) -> str:
    """The format of a file, one of READERS. Raises ValueError for a file that is no tokenizer."""
    if is_gguf(file):  # of which the rest is not read
        return "gguf"
    data = file.read_bytes()
    start = data[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()
    if has_footer(data):  # first: a binary begins with a number, whose bytes may look like any format below
        return "binary"
    if re.match(rb"\x80[\2-\5]", data):
        return "pickle"
    if start[:1] == b"{" and b"\0" not in start:
        return _detect_json(file, data)
    if _RANK.fullmatch(start.split(b"\n")[0]):
        return "ranks"
    if file.name == VOCAB_TXT or re.search(rb"^\[UNK\]\r?$", data, re.MULTILINE):
        return "vocab_txt"
    if MAGIC in data[-256:]:  # a binary that is truncated
        return "binary"
    if data[:1] == b"\n" and b"\0" in data[: 1 << 16]:
        return "sentencepiece"
    found = "an empty file" if not data else f"a file that begins with {start[:24]!r}"
    if start.startswith(b"version https://git-lfs"):
        found = "a pointer of Git LFS, whose content `git lfs pull` fetches"
    elif start.startswith(b"#version") or re.match(rb"\S+ \S+\r?\n\S+ \S+\r?\n", start):
        found = "merges without their vocabulary beside them, such as vocab.json"
    raise ValueError(f"{file}: not a tokenizer, but {found}: expected {EXPECTED}")


def _detect_json(file: Path, data: bytes) -> str:
    try:
        content: dict[str, Any] = json.loads(data)
    except ValueError as error:
        raise ValueError(f"{file}: not JSON, although it begins like it: {error}") from error
    if isinstance(content.get("vocab"), list) and "config" in content:
        raise ValueError(f"{file}: Mistral's tekken.json, which is not supported: use the model's tokenizer.json")
    if not content or not all(type(i) is int for i in content.values()):
        return "tokenizer_json"
    if merges_file_of(file) is None:
        raise ValueError(f"{file}: a vocabulary without its merges: put them beside it, such as merges.txt")
    return "vocab_and_merges"


def load(path: Path | str) -> ChatTokenizer:
    """The tokenizer in a folder or file. Raises ValueError with the file and the remedy.

    Steps that put a space before every text (then `leading_space` is set) or normalise to NFC are left out; a tokenizer
    that changes text in other ways is refused.
    """
    try:
        vocabulary = read_vocabulary(Path(path))
        return ChatTokenizer(make_lossless(vocabulary), leading_space=adds_prefix_space(vocabulary.steps))
    except ValueError as error:
        raise ValueError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from error


def make_lossless(vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary without optional steps, so that the tokens of a text are exactly its bytes.

    Tokens put around a text are left out, too: chat templates write them. Raises ValueError if other steps remain.
    """
    special_handling = to_special_handling(vocabulary.flags)
    plain = replace(vocabulary, steps=drop_harmless_steps(vocabulary.steps), special_handling=special_handling)
    if plain.lossless:
        return plain
    encode = choose_backend(plain).encode_one
    for text in NORMALIZATION_SAMPLES:
        other = b"".join(plain.tokens[i] for i in encode(text)).decode(errors="replace")
        if other != text:
            raise ValueError(f"it changes text, {text!r} into {other!r}: its tokens are not the bytes of the text")
    raise ValueError("it changes or loses some text: its tokens are not the bytes of the text")


def files_of(path: Path) -> list[Path]:
    """All files from which a tokenizer's file is read, itself included."""
    others = [merges_file_of(path), vocabulary_file_of(path), description_file(path)]
    return [path, *(file for file in others if file is not None and file.exists())]


def read_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary in a folder or file, whose format follows from its content."""
    if (path / DESCRIPTION).is_file():
        return read_folder(path)
    file = tokenizer_file(path)
    try:
        vocabulary = READERS[detect_format(file)](file)
        check_vocabulary(vocabulary)
        if vocabulary.steps is not None:
            choose_backend(vocabulary)  # raises ValueError for steps that its library rejects
    except ValueError as error:
        raise ValueError(str(error) if str(error).startswith(str(file)) else f"{file}: {error}") from error
    except (LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{file}: not a tokenizer that chatmill can read: {error!r:.200}") from error
    return vocabulary


def tokenizer_file(path: Path) -> Path:
    """The file of a tokenizer in a folder, or the file itself; of a file of merges, its vocabulary."""
    file = next((path / name for name in IN_FOLDERS if (path / name).is_file()), path)
    if not file.is_file():
        raise ValueError(f"{file}: no such file: expected a tokenizer's folder or file")
    return vocabulary_file_of(file) or file
