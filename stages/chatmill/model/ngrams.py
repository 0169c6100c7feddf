"""Hashes of token n-grams, which select rows of an embedding table.

Shapes: B batch, T time (tokens), S time with the cached past, N lengths of n-grams.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def hash_token_ngrams(ids: Tensor, positions: Tensor, lengths: Sequence[int]) -> Tensor:
    """(B, S), (B, T) -> (B, T, N) int64 below 2**31: hashes of the n-grams that end with each of the last T tokens.

    `positions` are those in the conversation: no n-gram reaches beyond its beginning.
    """
    state, hashes, past = torch.zeros_like(positions), [], ids.shape[1] - positions.shape[1]
    for back in range(max(lengths)):
        before = F.pad(ids, (back, 0))[:, past : ids.shape[1]]
        state = mix_bits(state + torch.where(positions >= back, before + 1, 0))
        if back + 1 in lengths:
            hashes.append(state)
    return torch.stack(hashes, dim=-1)


def mix_bits(numbers: Tensor) -> Tensor:
    """Hash numbers from 0 to 2**31 - 1 to the same range; inputs that differ in one bit differ in about half after."""
    numbers = (numbers * 0x2C1B3C6D) & 0x7FFFFFFF
    numbers = ((numbers ^ (numbers >> 15)) * 0x297A2D39) & 0x7FFFFFFF
    return numbers ^ (numbers >> 14)
