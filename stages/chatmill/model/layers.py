"""The layers of the model: attention, feed-forward, and the cache of keys and values.

Shapes: B batch, T time (tokens), S time with the cached past, H heads, K key-value heads, D head size, N segments.
"""

import math
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from chatmill.checkpoints.configuration import ModelConfig, RopeScaling

# Attention: which tokens attend to which, and how it is computed.

_BLOCK = 256  # queries; with half or twice as many a step takes a tenth longer
_HIDDEN = -1e30  # the score of masked positions


class Segments(NamedTuple):
    """The conversations of B rows, one after another: a token sees itself and the earlier ones of its own."""

    borders: Tensor  # (N + 1,) int32: where each begins, and B T; the last of them are empty
    longest: int  # tokens, at most

    def to(self, device: torch.device) -> "Segments":
        """The same on a device."""
        return self._replace(borders=self.borders.to(device, non_blocking=True))


def find_segments(conversations: NDArray[np.integer[Any]]) -> Segments:
    """(B, T) -> the segments of equal numbers; their count is filled up to a power of 2, so that few shapes occur."""
    is_first = np.ones(conversations.shape, bool)
    is_first[:, 1:] = conversations[:, 1:] != conversations[:, :-1]
    starts = np.flatnonzero(is_first)
    borders = np.full((1 << len(starts).bit_length()) + 1, conversations.size, np.int32)
    borders[: len(starts)] = starts
    return Segments(torch.from_numpy(borders), conversations.shape[1])


def conversation_mask(conversations: Tensor) -> Tensor:
    """(B, T) -> (B, 1, T, T) bool: a token sees itself and the earlier tokens of its own conversation."""
    return (conversations[:, :, None] == conversations[:, None]).tril()[:, None]


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | Segments | None) -> Tensor:
    """(B, H, T, D), two (B, K, S, D) -> (B, H, T, D); `mask` (B, 1, T, S) is true where visible, None is causal.

    Segments, where T = S, take a CPU, or a GPU and 16 bits: see `training.trainer.takes_segments`.
    """
    if isinstance(mask, Segments):
        return _in_segments(queries, keys, values, mask)
    faster = torch.compiler.is_compiling() or queries.dtype == torch.bfloat16
    fits = queries.shape[2] == keys.shape[2] or keys.shape[2] <= _BLOCK
    if faster and fits and mask is not None and queries.device.type == "cpu":
        return _in_blocks(queries, keys, values, mask)
    return F.scaled_dot_product_attention(queries, keys, values, mask, is_causal=mask is None, enable_gqa=True)


def _in_blocks(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """The same by blocks of queries, where T = S or S fits into a block: keys after the block are skipped.

    PyTorch's own CPU kernel computes all pairs, and its backward pass is slow: with it, and 700 tokens a row, a
    compiled step takes 1.4 times longer, and an uncompiled one in bfloat16 1.6 times.
    """
    groups = queries.unflatten(1, (keys.shape[1], -1)) * queries.shape[-1] ** -0.5  # (B, K, H/K, T, D)
    keys, values, mask = keys[:, :, None], values[:, :, None], mask[:, :, None]
    attended = []
    for start in range(0, queries.shape[2], _BLOCK):
        end = start + _BLOCK
        scores = groups[..., start:end, :] @ keys[..., :end, :].mT
        weights = scores.masked_fill(~mask[..., start:end, :end], _HIDDEN).softmax(-1)
        attended.append(weights.to(values.dtype) @ values[..., :end, :])
    return torch.cat(attended, dim=3).flatten(1, 2)


def _in_segments(queries: Tensor, keys: Tensor, values: Tensor, segments: Segments) -> Tensor:
    if queries.device.type == "cpu":
        return _one_by_one(queries, keys, values, segments)
    from torch.nn.attention.varlen import varlen_attn  # here, since it imports the compiler, which takes a second

    q, k, v = (heads.transpose(1, 2).flatten(0, 1) for heads in (queries, keys, values))  # (B T, H, D)
    borders, longest = segments
    options: dict[str, Any] = {"window_size": (-1, 0), "enable_gqa": True}  # causal
    attended: Any = varlen_attn(q, k, v, borders, borders, longest, longest, **options)
    rows: Tensor = attended.unflatten(0, (len(queries), -1))
    return rows.transpose(1, 2)


def _one_by_one(queries: Tensor, keys: Tensor, values: Tensor, segments: Segments) -> Tensor:
    """Causal attention on a CPU, one conversation at a time: a mask over a whole row would waste most token pairs.

    In float32, as the kernel's backward pass takes up to three times longer in bfloat16.
    """
    lengths = segments.borders.unique_consecutive().diff().tolist()
    as_one_row = (heads.transpose(0, 1).flatten(1, 2).float()[None] for heads in (queries, keys, values))
    conversations = zip(*(heads.split(lengths, dim=2) for heads in as_one_row), strict=True)  # (1, H, T, D) each
    attended = partial(F.scaled_dot_product_attention, is_causal=True, enable_gqa=True)
    with torch.autocast("cpu", enabled=False):
        row = torch.cat([attended(q, k, v) for q, k, v in conversations], dim=2).to(values.dtype)
    rows: Tensor = row[0].unflatten(1, (len(queries), -1))  # (H, B, T, D)
    return rows.transpose(0, 1)


# The parts of a model: attention, feed-forward, a layer of both, and the cache of keys and values.

INITIAL_CACHE_LENGTH = 512  # tokens that a new cache has room for; it grows as it is filled


class EmbeddingTable(Protocol):
    """An embedding table (V, C): stored, or computed by another network."""

    @property
    def weight(self) -> Tensor:
        """(V, C)."""


class SequenceCache(Protocol):
    """Keys and values of earlier tokens, which a layer attends to in addition to its input."""

    @property
    def length(self) -> int:
        """The number of tokens in the cache."""

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Two (B, K, T, D) -> two (B, K, S, D): appended to those of the past."""


class KVCache:
    """Keys and values of the past, (B, K, S, D) for each layer; lowering `length` rewinds it.

    They have the dtype and device of `weight`, and grow by doubling.
    """

    def __init__(self, config: ModelConfig, batch: int, length: int, weight: Tensor) -> None:
        shape = (batch, config.num_key_value_heads, min(length, INITIAL_CACHE_LENGTH), config.head_dim)
        self.keys = [weight.new_zeros(shape) for _ in range(config.num_hidden_layers)]
        self.values = [weight.new_zeros(shape) for _ in range(config.num_hidden_layers)]
        self.capacity = length
        self.length = 0

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Two (B, K, T, D) -> two (B, K, S, D): appended to the past; the last layer advances `length`."""
        end = self.length + keys.shape[2]
        if end > self.capacity:
            raise ValueError(f"{end} tokens do not fit into a cache of {self.capacity}")
        if end > self.keys[layer].shape[2]:
            size = min(self.capacity, max(end, 2 * self.keys[layer].shape[2]))
            for tensors in (self.keys, self.values):
                former = tensors[layer]
                tensors[layer] = former.new_zeros(*former.shape[:2], size, former.shape[3])
                tensors[layer][:, :, : self.length] = former[:, :, : self.length]
        self.keys[layer][:, :, self.length : end] = keys
        self.values[layer][:, :, self.length : end] = values
        if layer == len(self.keys) - 1:
            self.length = end
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]


class Attention(nn.Module):
    """Grouped-query attention, in Qwen3 with normalised queries and keys."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        width, size, variant = config.hidden_size, config.head_dim, config.variant
        self.layer, self.head_dim, self.attend = layer, size, attend
        self.q_proj = nn.Linear(width, config.num_attention_heads * size, bias=variant.qkv_bias)
        self.k_proj = nn.Linear(width, config.num_key_value_heads * size, bias=variant.qkv_bias)
        self.v_proj = nn.Linear(width, config.num_key_value_heads * size, bias=variant.qkv_bias)
        self.o_proj = nn.Linear(config.num_attention_heads * size, width, bias=variant.output_bias)
        self.q_norm = nn.RMSNorm(size, config.rms_norm_eps) if variant.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(size, config.rms_norm_eps) if variant.qk_norm else nn.Identity()

    def forward(
        self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | Segments | None, cache: SequenceCache | None
    ) -> Tensor:
        """(B, T, C) -> (B, T, C); `mask` is as `attend` takes it."""
        heads = (*x.shape[:2], -1, self.head_dim)
        values = self.v_proj(x).view(heads).transpose(1, 2)
        queries = rotate(self.q_norm(self.q_proj(x).view(heads).float()).transpose(1, 2), *rotary).to(values.dtype)
        keys = rotate(self.k_norm(self.k_proj(x).view(heads).float()).transpose(1, 2), *rotary).to(values.dtype)
        if cache is not None:
            keys, values = cache.append(self.layer, keys, values)
        attended: Tensor = self.o_proj(self.attend(queries, keys, values, mask).transpose(1, 2).flatten(2))
        return attended


class FeedForward(nn.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))` (arXiv:2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        bias = config.variant.mlp_bias
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        fed: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return fed


class Layer(nn.Module):
    """Attention and feed-forward, each applied to the normalised residual stream and added to it."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = FeedForward(config)

    def forward(
        self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | Segments | None, cache: SequenceCache | None
    ) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        x = x + self.self_attn(self.input_layernorm(x), rotary, mask, cache)
        fed: Tensor = self.mlp(self.post_attention_layernorm(x))
        return x + fed


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(B, H, T, D) -> (B, H, T, D): rotary position embedding; channel i is paired with i + D/2 (arXiv:2104.09864)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def scale_rope_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """(D/2,) -> (D/2,) in radians per position: the frequencies of a model whose context was extended."""
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    unscaled = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    unscaled = unscaled.clamp(0, 1)
    return (1 - unscaled) * frequencies / scaling.factor + unscaled * frequencies
