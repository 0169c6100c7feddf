"""Models in the files of karpathy/llama2.c: a header, then the weights, kind by kind and layer by layer.

Little-endian, as the bytes lie:

    i32 dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size (below 0: the head is its own matrix), seq_len

or, in its later versions, `ak42` read as a number, i32 version, the same seven numbers, u8 whether the head is the
embedding, in version 2 i32 group size, zeros up to byte 256. Version 1 is float32; in version 2 each matrix is int8,
followed by one float32 scale for each group.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from chatmill.checkpoints.configuration import ModelConfig, Variant
from chatmill.model.chat_model import INITIAL_ROTARY_POSITIONS, ChatModel

MAGIC = 0x616B3432
VERSIONED_HEADER = 256  # bytes
EPSILON = 1e-5

_SHAPE = struct.Struct("<7i")
_VERSIONED = struct.Struct("<Ii7iBi")
_ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_FEED_FORWARD = ("mlp.gate_proj", "mlp.down_proj", "mlp.up_proj")
_NORMS = ("input_layernorm", "post_attention_layernorm", "norm")
_LEGACY_ORDER = ("embed_tokens", _NORMS[0], *_ATTENTION, _NORMS[1], *_FEED_FORWARD, "norm", "rotations", "lm_head")
_VERSIONED_ORDER = (*_NORMS, "embed_tokens", *_ATTENTION, *_FEED_FORWARD, "lm_head")
_ONCE = ("embed_tokens", "norm", "rotations", "lm_head")  # all others are there once a layer


@dataclass(frozen=True)
class Header:
    """The header of a file."""

    config: ModelConfig
    size: int  # bytes before the weights
    kinds: tuple[str, ...]  # of weights, in their order
    group_size: int = 0  # weights of a matrix that share a scale; 0 where they are float32

    def shape(self, kind: str) -> tuple[int, ...]:
        """The shape of one weight of a kind."""
        c = self.config
        heads, kv_heads = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        if kind in _NORMS:
            return (c.hidden_size,)
        return {
            "rotations": (2 * c.max_position_embeddings, c.head_dim // 2),
            "self_attn.q_proj": (heads, c.hidden_size),
            "self_attn.k_proj": (kv_heads, c.hidden_size),
            "self_attn.v_proj": (kv_heads, c.hidden_size),
            "self_attn.o_proj": (c.hidden_size, heads),
            "mlp.gate_proj": (c.intermediate_size, c.hidden_size),
            "mlp.up_proj": (c.intermediate_size, c.hidden_size),
            "mlp.down_proj": (c.hidden_size, c.intermediate_size),
        }.get(kind, (c.vocab_size, c.hidden_size))

    def num_bytes(self, kind: str) -> int:
        """The bytes of one weight of a kind."""
        count = prod(self.shape(kind))
        return count + 4 * (count // self.group_size) if self.group_size and kind not in _NORMS else 4 * count

    def count(self, kind: str) -> int:
        """How many weights of a kind there are."""
        return 1 if kind in _ONCE else self.config.num_hidden_layers


def is_llama2c(file: Path) -> bool:
    """Whether a file can only be llama2.c's: it is named `.bin`, and is no zip as PyTorch's files are."""
    if file.suffix != ".bin":
        return False
    with file.open("rb") as stream:
        return stream.read(2) != b"PK"


def load_llama2c_model(file: Path) -> ChatModel:
    """The model of a file in float32, memory-mapped where the file has float32.

    Raises ValueError if its header is not llama2.c's, or its size is not that of the header's weights.
    """
    try:
        with file.open("rb") as stream:
            header = _read_header(stream.read(VERSIONED_HEADER))
        expected = header.size + sum(header.num_bytes(kind) * header.count(kind) for kind in header.kinds)
        if (size := file.stat().st_size) != expected:
            raise ValueError(f"by its header expected {expected:,} bytes, got {size:,}")
    except ValueError as error:
        raise ValueError(f"{file}: not a checkpoint of PyTorch 1.6 or later, nor of llama2.c: {error}") from error
    with torch.device("meta"):
        model = ChatModel(header.config)
    model.load_state_dict(dict(_weights(file, header)), assign=True)
    model.build_rotary_tables(INITIAL_ROTARY_POSITIONS)
    return model.eval()


def _read_header(data: bytes) -> Header:
    if len(data) < VERSIONED_HEADER:
        raise ValueError(f"expected {VERSIONED_HEADER} bytes or more, got {len(data)}")
    magic, version, *shape, shared, group = _VERSIONED.unpack_from(data)
    if magic != MAGIC:
        *shape, vocab_size, length = _SHAPE.unpack_from(data)
        config = _config([*shape, abs(vocab_size), length], tied=vocab_size > 0)
        return Header(config, _SHAPE.size, _LEGACY_ORDER[:-1] if vocab_size > 0 else _LEGACY_ORDER)
    config = _config(shape, tied=bool(shared))
    kinds = _VERSIONED_ORDER[:-1] if shared else _VERSIONED_ORDER
    if version == 1:
        return Header(config, VERSIONED_HEADER, kinds)
    if version != 2:
        raise ValueError(f"version {version}: expected 1 or 2")
    header = Header(config, VERSIONED_HEADER, kinds, group)
    if group < 1 or any(prod(header.shape(kind)) % group for kind in kinds if kind not in _NORMS):
        raise ValueError(f"groups of {group} do not divide its matrices")
    return header


def _config(shape: Sequence[int], *, tied: bool) -> ModelConfig:
    dim, hidden, layers, heads, kv_heads, vocab_size, length = shape
    if min(shape) < 1 or dim % heads:
        raise ValueError(f"invalid shape {', '.join(map(str, shape))}")
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=dim,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=dim // heads,
        max_position_embeddings=length,
        rms_norm_eps=EPSILON,
        tie_word_embeddings=tied,
        variant=Variant(qk_norm=False),
    )


def _weights(file: Path, header: Header) -> Iterator[tuple[str, Tensor]]:
    """Our names and the weights, in the order of the file."""
    data, place = np.memmap(file, np.uint8, mode="c"), header.size
    for kind in header.kinds:
        for layer in range(header.count(kind)):
            stop = place + header.num_bytes(kind)
            if kind != "rotations":
                weight = _weight(data[place:stop], header, kind)
                if kind in _ATTENTION[:2]:
                    weight = _permute_rotary(weight, header.config.head_dim)
                where = {"lm_head": ""}.get(kind, "model." if kind in _ONCE else f"model.layers.{layer}.")
                yield f"{where}{kind}.weight", weight
            place = stop


def _weight(data: np.ndarray, header: Header, kind: str) -> Tensor:
    shape = header.shape(kind)
    if not header.group_size or kind in _NORMS:
        return torch.from_numpy(data.view("<f4").reshape(shape))
    numbers = data[: prod(shape)].view(np.int8).reshape(-1, header.group_size)
    scales = np.frombuffer(data[prod(shape) :].tobytes(), "<f4")
    return torch.from_numpy((numbers * scales[:, None]).reshape(shape))


def _permute_rotary(weight: Tensor, head_dim: int) -> Tensor:
    """Rows of queries or keys in our order: llama2.c rotates channel 2i with 2i + 1, we rotate i with i + D/2."""
    return weight.view(-1, head_dim // 2, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
