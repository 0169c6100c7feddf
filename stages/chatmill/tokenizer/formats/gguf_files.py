"""Reads GGUF files: their fields and tensors, and the tokenizer in them.

The package gguf reads them, too, but takes 30 µs for each token of a vocabulary. The split patterns are those that
llama.cpp has, by the names in `tokenizer.ggml.pre`.
"""

import math
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, TokenType, quants
from numpy.typing import NDArray
from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec

from chatmill.tokenizer.vocabulary.patterns import ANYTHING, DIGITS_THEN_GPT2, PATTERNS
from chatmill.tokenizer.vocabulary.preprocessing import METASPACE, to_normalizer_spec
from chatmill.tokenizer.vocabulary.sentencepiece_model import from_model_proto
from chatmill.tokenizer.vocabulary.tokenizer_json import byte_level_splits, from_json
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary, check_vocabulary

SHORT_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = "llama-bpe"  # the one that takes a piece that is a token as it is
PRE_TOKENIZERS = {  # by the pattern
    PATTERNS["qwen2"]: "qwen2",
    PATTERNS["llama3"]: LLAMA3,
    PATTERNS["gpt2"]: "gpt-2",
    SHORT_GPT2: "gpt-2",
    DIGITS_THEN_GPT2: "smollm",
}
ALIASES = {"llama3": LLAMA3, "llama-v3": LLAMA3, "gpt2": "gpt-2", "deepseek-r1-qwen": "qwen2"}  # of the same pattern


# A GGUF file: its fields, and its tensors, which are read when they are asked for.

MAGIC, VERSIONS = b"GGUF", (2, 3)
ALIGNMENT = "general.alignment"
_STRING, _ARRAY = 8, 9
_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))  # struct's letters
_PLAIN: dict[int, Any] = {GGMLQuantizationType.F32: np.dtype("<f4"), GGMLQuantizationType.F16: np.dtype("<f2")}


class Place(NamedTuple):
    shape: tuple[int, ...]  # the outermost dimension first
    type: GGMLQuantizationType
    start: int
    size: int  # bytes


@dataclass(frozen=True)
class GGUFFile:
    """The fields and tensors of a file by name; the file is mapped, and no tensor is read yet."""

    fields: dict[str, Any]  # numbers, bool, str, and lists of these
    places: dict[str, Place]
    data: NDArray[np.uint8]

    def tensor(self, name: str) -> NDArray[Any]:
        """A tensor in float32, or as it is mapped from the file where it is float32 or float16.

        Raises ValueError for a type that the package gguf cannot read.
        """
        place = self.places[name]
        stored = self.data[place.start : place.start + place.size]
        try:
            plain = _PLAIN.get(place.type)
            found = quants.dequantize(np.asarray(stored), place.type) if plain is None else stored.view(plain)
        except NotImplementedError as error:
            raise ValueError(f"its tensor {name:.80} is {place.type.name}: a type that is not read") from error
        shaped: NDArray[Any] = found.reshape(place.shape)
        return shaped


class _Cursor:
    """Reads values one after another. Raises ValueError where the file ends before."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.place = data, 0

    def numbers(self, letters: str) -> tuple[Any, ...]:
        layout = struct.Struct(f"<{letters}")
        self.check(layout.size)
        found = layout.unpack_from(self.data, self.place)
        self.place += layout.size
        return found

    def string(self) -> str:
        (length,) = self.numbers("Q")
        self.check(length)
        self.place += length
        return str(self.data[self.place - length : self.place], "utf-8")

    def value(self, type: int, *, in_array: bool = False) -> Any:
        if type == _STRING:
            return self.string()
        if type in _NUMBERS:
            return self.numbers(_NUMBERS[type])[0]
        if type != _ARRAY or in_array:
            raise ValueError(f"a value of type {type}, which GGUF does not have here")
        kind, length = self.numbers("IQ")
        if kind in _NUMBERS:
            self.check(length)  # a byte for each at least
            return list(self.numbers(f"{length}{_NUMBERS[kind]}"))
        self.check(8 * length)
        return [self.value(kind, in_array=True) for _ in range(length)]

    def check(self, size: int) -> None:
        if size > len(self.data) - self.place:
            raise ValueError(f"it ends after {len(self.data):,} bytes, where {self.place + size:,} are expected")


def is_gguf(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


def read_gguf(file: Path) -> GGUFFile:
    """Read the fields and the list of tensors. Raises ValueError for a damaged file, or one of another version."""
    if not is_gguf(file):
        raise ValueError(f"{file}: not a GGUF file")
    data: NDArray[np.uint8] = np.memmap(file, np.uint8, mode="c")
    try:
        return GGUFFile(*_read_header(_Cursor(data.data)), data)
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: a damaged GGUF file: {error}") from error


def _read_header(cursor: _Cursor) -> tuple[dict[str, Any], dict[str, Place]]:
    _, version, num_tensors, num_fields = cursor.numbers("4sIQQ")
    if version not in VERSIONS:
        raise ValueError(f"version {version}: expected 2 or 3, little-endian")
    fields = {}
    for _ in range(num_fields):
        name = cursor.string()
        fields[name] = cursor.value(*cursor.numbers("I"))
    listed = []
    for _ in range(num_tensors):
        name, (dimensions,) = cursor.string(), cursor.numbers("I")
        listed.append((name, cursor.numbers(f"{dimensions}Q"), *cursor.numbers("IQ")))
    alignment = int(fields.get(ALIGNMENT, 32))
    begin = math.ceil(cursor.place / alignment) * alignment
    places = {}
    for name, shape, type, offset in listed:
        kind, start = GGMLQuantizationType(type), begin + offset
        block, block_bytes = GGML_QUANT_SIZES[kind]
        size = math.prod(shape) // block * block_bytes
        if 0 in shape or shape[0] % block:
            raise ValueError(f"its tensor {name:.80} has the shape {shape[::-1]}")
        if start + size > len(cursor.data):
            raise ValueError(f"its tensor {name:.80} ends at {start + size:,} of {len(cursor.data):,} bytes")
        places[name] = Place(shape[::-1], kind, start, size)
    return fields, places


# The tokenizer in a GGUF file: what gguf_export.tokenizer_fields writes, and other programs' files of these kinds.

FIELD, TOKENIZER_TYPE = "tokenizer.ggml.", "chatmill.tokenizer_type"
PATTERN_NAMES = {name: pattern for pattern, name in reversed(PRE_TOKENIZERS.items())}  # of two with one name, the first


def vocabulary_of(fields: dict[str, Any]) -> Vocabulary:
    """The vocabulary. Raises ValueError for a kind of tokenizer that chatmill does not have, or a damaged one."""
    tokens, types = fields.get(f"{FIELD}tokens"), fields.get(f"{FIELD}token_type")
    if not isinstance(tokens, list) or not isinstance(types, list) or len(tokens) != len(types):
        raise ValueError(f"expected {FIELD}tokens, and as many {FIELD}token_type")
    try:
        match fields.get(f"{FIELD}model"):
            case "gpt2":
                vocabulary = _byte_level(fields, tokens, types)
            case "llama":
                vocabulary = _sentencepiece(fields, tokens, types)
            case other:
                raise ValueError(f"{FIELD}model {other!r:.80}: expected gpt2 or llama")
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"not a tokenizer that chatmill can read: {error!r:.200}") from error
    check_vocabulary(vocabulary)
    return vocabulary


def _byte_level(fields: dict[str, Any], tokens: list[str], types: list[int]) -> Vocabulary:
    given = str(fields.get(f"{FIELD}pre"))
    pre = ALIASES.get(given, given)
    pattern = PATTERN_NAMES.get(pre, "")
    if not pattern:
        known = ", ".join(sorted({*PATTERN_NAMES, *ALIASES}))
        raise ValueError(f"{FIELD}pre {given!r:.80}: its split pattern is not known: expected one of {known}")
    merges = [merge for merge in fields.get(f"{FIELD}merges") or [] if merge]
    others = [i for i, type in enumerate(types) if type != TokenType.NORMAL]
    ids = {token: i for i, token in enumerate(tokens) if types[i] == TokenType.NORMAL}
    content = {
        "added_tokens": [
            {"id": i, "content": tokens[i], "special": types[i] != TokenType.USER_DEFINED} for i in others
        ],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": byte_level_splits(pattern if merges else ANYTHING)},
        "model": {"type": "BPE", "vocab": ids, "merges": merges, "ignore_merges": not merges or pre == LLAMA3},
    }
    type_name = fields.get(TOKENIZER_TYPE)
    vocabulary = from_json(content, type_name if isinstance(type_name, str) else None)
    kinds = zip(vocabulary.kinds, types, strict=True)
    return replace(vocabulary, kinds=tuple(Kind.UNUSED if type == TokenType.UNUSED else kind for kind, type in kinds))


def _sentencepiece(fields: dict[str, Any], tokens: list[str], types: list[int]) -> Vocabulary:
    spec = to_normalizer_spec(None)
    spec.add_dummy_prefix = bool(fields.get(f"{FIELD}add_space_prefix", True))
    model = ModelProto(normalizer_spec=spec)
    model.trainer_spec.model_type = TrainerSpec.BPE
    model.trainer_spec.byte_fallback = TokenType.BYTE in types
    for token, type, score in zip(tokens, types, fields[f"{FIELD}scores"], strict=True):
        piece = token.replace(" ", METASPACE) if type == TokenType.USER_DEFINED else token
        model.pieces.add(piece=piece, score=score, type=type)
    return from_model_proto(model)
