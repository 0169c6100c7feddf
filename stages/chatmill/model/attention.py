"""Attention: which tokens attend to which, and how it is computed.

Shapes: B batch, T time (tokens), S time with the cached past, H heads, K key-value heads, D head size, N segments.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

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

    Segments, where T = S, take a GPU and 16 bits: see `training.trainer.takes_segments`.
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
    """The same by a kernel that computes no pair of tokens of different conversations."""
    from torch.nn.attention.varlen import varlen_attn  # here, since it imports the compiler, which takes a second

    q, k, v = (heads.transpose(1, 2).flatten(0, 1) for heads in (queries, keys, values))  # (B T, H, D)
    borders, longest = segments
    options: dict[str, Any] = {"window_size": (-1, 0), "enable_gqa": True}  # causal
    attended: Any = varlen_attn(q, k, v, borders, borders, longest, longest, **options)
    rows: Tensor = attended.unflatten(0, (len(queries), -1))
    return rows.transpose(1, 2)
