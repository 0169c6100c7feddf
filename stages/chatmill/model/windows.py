"""Sliding-window attention: each token sees the last few tokens, and the cost grows with their number only.

Shapes: B batch, T time (tokens), S time with the cached past, W tokens of a window, n = T / W, C channels, K key-value
heads, D head size.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from chatmill.model.layers import PastKeyValues, SequenceCache


class _BlockBefore:
    """Stands in for a cache: prepends the previous block's keys and values to those of each block of W tokens."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Two (B n, K, W, D) -> two (B n, K, 2 W, D); the first block gets those of another, which the mask hides."""
        return self._with_block_before(keys), self._with_block_before(values)

    def _with_block_before(self, x: Tensor) -> Tensor:
        before = x.unflatten(0, (-1, self.blocks)).roll(1, dims=1).flatten(0, 1)
        return torch.cat([before, x], dim=2)


class SlidingWindow:
    """Runs layers in which each token sees the last `size` tokens; rotary and mask are as for a Layer."""

    def __init__(
        self, size: int, batch: int, rotary: tuple[Tensor, Tensor], mask: Tensor | None, cache: SequenceCache | None
    ) -> None:
        time = rotary[0].shape[2]
        self.size = size
        self.cache: PastKeyValues | None
        self.in_blocks = cache is None and time > size and time % size == 0
        if self.in_blocks:
            blocks = time // size
            cos, sin = (fold(table.expand(batch, -1, -1, -1)[:, 0], size)[:, None] for table in rotary)
            self.rotary = cos, sin
            self.mask, self.cache = mask_of_blocks(mask, batch, blocks, size, rotary[0].device), _BlockBefore(blocks)
        else:
            past = cache.length if cache else 0
            near = torch.ones(time, past + time, dtype=torch.bool, device=rotary[0].device).tril(past)
            near = near.triu(past - size + 1)
            self.rotary, self.mask, self.cache = rotary, near if mask is None else mask & near, cache

    def run(self, layers: Iterable[nn.Module], x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C) through the layers."""
        shape = x.shape
        x = fold(x, self.size) if self.in_blocks else x
        for layer in layers:
            x = layer(x, self.rotary, self.mask, self.cache)
        return x.reshape(shape)


def fold(x: Tensor, size: int) -> Tensor:
    """(B, T, C) -> (B n, W, C)."""
    return x.reshape(-1, size, x.shape[-1])


def mask_of_blocks(mask: Tensor | None, batch: int, blocks: int, size: int, device: torch.device) -> Tensor:
    """(B, 1, T, T) bool, or None for causal -> (B n, 1, W, 2 W): what the tokens of a block attend to.

    The first W columns are the previous block.
    """
    near = torch.ones(size, 2 * size, dtype=torch.bool, device=device).triu(1).tril(size)
    if mask is None:
        seen = near.repeat(batch, blocks, 1, 1)
        seen[:, 0, :, :size] = False
    else:
        square = mask.expand(batch, -1, -1, -1)[:, 0].unflatten(1, (blocks, size)).unflatten(3, (blocks, size))
        each = torch.arange(blocks, device=device)
        own = square[:, each, :, each].movedim(0, 1)
        before = square[:, each[1:], :, each[:-1]].movedim(0, 1)
        before = torch.cat([torch.zeros_like(own[:, :1]), before], dim=1)
        seen = torch.cat([before, own], dim=-1) & near
    return seen.flatten(0, 1)[:, None]
