"""Reads GGUF files: the shape, the weights and the tokenizer of a model.

The package gguf reads them, too, but takes 30 µs for each token of a vocabulary. The split patterns are those that
llama.cpp has, by the names in `tokenizer.ggml.pre`.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, MODEL_ARCH, GGMLQuantizationType, TokenType, get_tensor_name_map, quants
from numpy.typing import NDArray
from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec
from torch import Tensor

from chatmill.checkpoints.configuration import COMMON, ModelConfig, UnsupportedArchitecture, read_config
from chatmill.checkpoints.weights import Weights
from chatmill.tokenizer.formats.validation import check_vocabulary
from chatmill.tokenizer.vocabulary.patterns import ANYTHING, PATTERNS
from chatmill.tokenizer.vocabulary.preprocessing import (
    METASPACE,
    flat,
    from_tokenizers_json,
    normalizer_steps,
    to_normalizer_spec,
    to_tokenizers_json,
)
from chatmill.tokenizer.vocabulary.sentencepiece_model import from_model_proto
from chatmill.tokenizer.vocabulary.tokenizer_json_reader import from_json
from chatmill.tokenizer.vocabulary.vocabulary import FLAGS, Kind, Vocabulary

DIGITS = from_tokenizers_json(
    {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}]}}
)
SHORT_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = "llama-bpe"  # the one that takes a piece that is a token as it is
PRE_TOKENIZERS = {  # by the pattern, and the steps before it
    (PATTERNS["qwen2"], None): "qwen2",
    (PATTERNS["llama3"], None): LLAMA3,
    (PATTERNS["gpt2"], None): "gpt-2",
    (SHORT_GPT2, None): "gpt-2",
    (PATTERNS["gpt2"], DIGITS): "smollm",
}
ALIASES = {"llama3": LLAMA3, "llama-v3": LLAMA3, "gpt2": "gpt-2", "deepseek-r1-qwen": "qwen2"}  # of the same pattern


# A GGUF file: its fields, and its tensors, which are read when they are asked for.

MAGIC, VERSIONS = b"GGUF", (2, 3)
ALIGNMENT = "general.alignment"
_STRING, _ARRAY = 8, 9
_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))  # struct's letters
_PLAIN: dict[int, Any] = {GGMLQuantizationType.F32: np.dtype("<f4"), GGMLQuantizationType.F16: np.dtype("<f2")}


class Place(NamedTuple):
    """Where a tensor lies in a file."""

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

    def tensor(self, name: str) -> Tensor:
        """A tensor in float32, or as it is mapped from the file where it is float32 or float16.

        Raises ValueError for a type that the package gguf cannot read.
        """
        place = self.places[name]
        stored = self.data[place.start : place.start + place.size]
        if (dtype := _PLAIN.get(place.type)) is not None:
            return torch.from_numpy(stored.view(dtype).reshape(place.shape))
        try:
            values = quants.dequantize(np.asarray(stored), place.type)
        except NotImplementedError as error:
            raise ValueError(f"its tensor {name:.80} is {place.type.name}: expected f32, f16, q8_0 or q4_0") from error
        return torch.from_numpy(values.reshape(place.shape))


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
    """Whether a file begins as GGUF files do."""
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
    listed = dict(_tensors(cursor, num_tensors))
    alignment = int(fields.get(ALIGNMENT, 32))
    begin = math.ceil(cursor.place / alignment) * alignment
    places = {name: place._replace(start=begin + place.start) for name, place in listed.items()}
    for name, place in places.items():
        if place.start + place.size > len(cursor.data):
            raise ValueError(
                f"its tensor {name:.80} ends at {place.start + place.size:,} of {len(cursor.data):,} bytes"
            )
    return fields, places


def _tensors(cursor: _Cursor, count: int) -> Iterator[tuple[str, Place]]:
    for _ in range(count):
        name, (dimensions,) = cursor.string(), cursor.numbers("I")
        shape = cursor.numbers(f"{dimensions}Q")
        type, start = cursor.numbers("IQ")
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(type)]
        if 0 in shape or shape[0] % block:
            raise ValueError(f"its tensor {name:.80} has the shape {shape[::-1]}")
        place = Place(shape[::-1], GGMLQuantizationType(type), start, math.prod(shape) // block * block_bytes)
        yield name, place


# The shape of a model, from the fields and tensors of a GGUF file: what gguf_export.hyperparameters writes.

ARCHITECTURES = ("llama", "qwen2", "qwen3")
NAMES = {  # of config.json, by the fields after the architecture's name
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "expert_count": "num_experts",
}
EMBEDDING, HEAD, ROPE_FREQUENCIES = "token_embd.weight", "output.weight", "rope_freqs.weight"
LLAMA3_FACTORS = (1.0, 4.0)  # low_freq_factor, high_freq_factor
TOLERANCE = 1e-3  # relative, of the frequencies of rotation


def architecture(fields: dict[str, Any]) -> str:
    """The name of the architecture. Raises UnsupportedArchitecture where it is none of ARCHITECTURES."""
    name = fields.get("general.architecture")
    if name not in ARCHITECTURES:
        expected = f"expected one of {', '.join(ARCHITECTURES)}: llama.cpp may run it"
        raise UnsupportedArchitecture(f"architecture {name!r:.80}: {expected}")
    return str(name)


def read_shape(content: GGUFFile) -> ModelConfig:
    """The shape. Raises UnsupportedArchitecture where our model cannot represent it, and ValueError for a wrong one."""
    arch, fields = architecture(content.fields), content.fields
    given = {name: fields.get(f"{arch}.{field}") for field, name in NAMES.items()}
    config: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if EMBEDDING not in content.places:
        raise ValueError(f"it has no {EMBEDDING}")
    config |= {
        "model_type": arch,
        "vocab_size": content.places[EMBEDDING].shape[0],
        "tie_word_embeddings": HEAD not in content.places,
        "attention_bias": arch == "llama" and "blk.0.attn_q.bias" in content.places,
        "mlp_bias": "blk.0.ffn_up.bias" in content.places,
    }
    rotated = fields.get(f"{arch}.rope.dimension_count")
    kind = fields.get(f"{arch}.rope.scaling.type", "none")
    if kind == "linear":
        config["rope_scaling"] = {"rope_type": "linear", "factor": fields.get(f"{arch}.rope.scaling.factor")}
    elif kind != "none":
        raise UnsupportedArchitecture(f"rope scaling {kind!r:.80}: only linear is supported")
    if ROPE_FREQUENCIES in content.places:
        config["rope_scaling"] = _llama3_scaling(content, float(config.get("rope_theta", COMMON["rope_theta"])))
    shape = read_config(config)
    if shape.num_hidden_layers > len(content.places):
        raise ValueError(f"{shape.num_hidden_layers:,} layers, but {len(content.places)} tensors")
    if rotated not in (None, shape.head_dim):
        raise UnsupportedArchitecture(f"rope over {rotated!r:.40} of {shape.head_dim} channels: only all are supported")
    return shape


def _llama3_scaling(content: GGUFFile, theta: float) -> dict[str, Any]:
    """Llama 3's rope scaling, which a file has as a divisor for each pair of channels.

    Its factors of low and high frequencies are those of all published models; the original context follows from them.
    """
    divisors = content.tensor(ROPE_FREQUENCIES).numpy().astype(np.float64)
    factor, (low, high) = divisors.max(), LLAMA3_FACTORS
    turns = theta ** (-np.arange(len(divisors)) / len(divisors)) / (2 * np.pi)  # of each pair, per position
    kept = (1 / divisors - 1 / factor) / max(1 - 1 / factor, TOLERANCE)  # share of the frequency
    between = (kept > TOLERANCE) & (kept < 1 - TOLERANCE)
    context = np.round(np.median((low + (high - low) * kept[between]) / turns[between])) if between.any() else 1.0
    expected = np.clip((context * turns - low) / (high - low), 0, 1)
    if not np.allclose((1 - expected) / factor + expected, 1 / divisors, rtol=TOLERANCE):
        raise UnsupportedArchitecture(f"{ROPE_FREQUENCIES} is not as Llama 3 has it: only that is supported")
    factors = {"factor": float(factor), "low_freq_factor": low, "high_freq_factor": high}
    return {"rope_type": "llama3", "original_max_position_embeddings": int(context), **factors}


# The tokenizer in a GGUF file: what gguf_export.tokenizer_fields writes, and other programs' files of these kinds.

FIELD, TOKENIZER_TYPE = "tokenizer.ggml.", "chatmill.tokenizer_type"
PATTERN_NAMES = {name: pair for pair, name in reversed(PRE_TOKENIZERS.items())}  # of two with one name, the first
MAX_TOKENS = 1 << 20


def read_vocabulary(fields: dict[str, Any]) -> Vocabulary:
    """The vocabulary. Raises ValueError for a kind of tokenizer that chatmill does not have, or a damaged one."""
    tokens, types = fields.get(f"{FIELD}tokens"), fields.get(f"{FIELD}token_type")
    if not isinstance(tokens, list) or not isinstance(types, list) or not 0 < len(tokens) == len(types) <= MAX_TOKENS:
        raise ValueError(f"expected up to {MAX_TOKENS:,} {FIELD}tokens, and as many {FIELD}token_type")
    if not all(isinstance(token, str) for token in tokens) or not set(types) <= set(TokenType):
        raise ValueError(f"{FIELD}tokens are not texts, or {FIELD}token_type has an unknown type")
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
    pattern, steps = PATTERN_NAMES.get(pre, ("", None))
    if not pattern:
        known = ", ".join(sorted({*PATTERN_NAMES, *ALIASES}))
        raise ValueError(f"{FIELD}pre {given!r:.80}: its split pattern is not known: expected one of {known}")
    merges = [merge for merge in fields.get(f"{FIELD}merges") or [] if merge]
    splits = [] if steps is None else flat("pre_tokenizer", to_tokenizers_json(steps)["pre_tokenizer"])
    regex = {"Regex": pattern if merges else ANYTHING}
    split = {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    is_text = [type == TokenType.NORMAL for type in types]
    ids = {token: i for i, token in enumerate(tokens) if is_text[i]}
    if len(ids) < sum(is_text):
        raise ValueError("it has a token twice")
    added = [
        {"id": i, "content": token, "special": types[i] != TokenType.USER_DEFINED} | dict.fromkeys(FLAGS, False)
        for i, token in enumerate(tokens)
        if not is_text[i]
    ]
    ignore_merges = not merges or pre == LLAMA3
    content = {
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, split, byte_level]},
        "model": {"type": "BPE", "vocab": ids, "merges": merges, "ignore_merges": ignore_merges},
    }
    type_name = fields.get(TOKENIZER_TYPE)
    vocabulary = from_json(content, type_name if isinstance(type_name, str) else None)
    unused = (Kind.UNUSED if type == TokenType.UNUSED else None for type in types)
    kinds = tuple(other or kind for kind, other in zip(vocabulary.kinds, unused, strict=True))
    return replace(vocabulary, kinds=kinds)


def _sentencepiece(fields: dict[str, Any], tokens: list[str], types: list[int]) -> Vocabulary:
    spec = to_normalizer_spec(None)
    spec.add_dummy_prefix = bool(fields.get(f"{FIELD}add_space_prefix", True))
    model = ModelProto(normalizer_spec=spec)
    model.trainer_spec.model_type = TrainerSpec.BPE
    model.trainer_spec.byte_fallback = TokenType.BYTE in types
    for token, type, score in zip(tokens, types, fields[f"{FIELD}scores"], strict=True):
        piece = token.replace(" ", METASPACE) if type == TokenType.USER_DEFINED else token
        model.pieces.add(piece=piece, score=score, type=type)
    vocabulary = from_model_proto(model)
    if vocabulary.steps is None and not vocabulary.has_unused_names:  # another program's: U+2581 is a space
        return replace(vocabulary, steps=normalizer_steps(spec))
    return vocabulary


# The weights in a GGUF file under Hugging Face's names, and in their order.


def read_tensors(content: GGUFFile, config: ModelConfig, names: list[str]) -> Weights:
    """The tensors by `names`, those of our model; others keep the name that they have in the file.

    Quantized ones become float32.
    """
    arch = MODEL_ARCH[architecture(content.fields).upper()]
    known = get_tensor_name_map(arch, config.num_hidden_layers)
    ours = {known.get_name(name, try_suffixes=(".weight", ".bias")): name for name in names}
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    weights: Weights = {}
    for name in content.places:
        if name != ROPE_FREQUENCIES:
            own = ours.get(name) or name
            rotated = heads.get(own.split(".")[-2], 0) if arch == MODEL_ARCH.LLAMA and own != name else 0
            weights[own] = _in_halves(content.tensor(name), rotated)
    return weights


def _in_halves(weight: Tensor, heads: int) -> Tensor:
    """Rows (H * D/2 * 2, C) -> (H * 2 * D/2, C) of queries or keys, of which llama.cpp rotates neighbours as a pair."""
    if not heads or weight.shape[0] % (2 * heads):
        return weight
    return weight.reshape(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
