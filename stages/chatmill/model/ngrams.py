"""Rows of a table for stretches of tokens, found by hashing.

Shapes: B batch, T time (tokens), S time with the cached past, N lengths of stretches.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def hash_token_ngrams(ids: Tensor, positions: Tensor, lengths: Sequence[int]) -> Tensor:
    """(B, S), (B, T) -> (B, T, N) int64 below 2**31: of the last T tokens, a hash of each and of those before it.

    `places` says how many of its conversation come before each: a stretch ends there.
    """
    state, found, past = torch.zeros_like(positions), [], ids.shape[1] - positions.shape[1]
    for back in range(max(lengths)):
        before = F.pad(ids, (back, 0))[:, past : ids.shape[1]]
        state = mix_bits(state + torch.where(positions >= back, before + 1, 0))
        if back + 1 in lengths:
            found.append(state)
    return torch.stack(found, dim=-1)


def mix_bits(numbers: Tensor) -> Tensor:
    """From 0 to 2**31 - 1: one that differs in a bit gives one that differs in about half of them."""
    numbers = (numbers * 0x2C1B3C6D) & 0x7FFFFFFF
    numbers = ((numbers ^ (numbers >> 15)) * 0x297A2D39) & 0x7FFFFFFF
    return numbers ^ (numbers >> 14)
