"""The router that decides where chunks begin, and the losses that train it.

Shapes: B batch, T time (tokens), V vocabulary, C channels, W channels of the outer layers, N chunk ends that are
tried, K reconstructed tokens of each.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_BOTTLENECK = 16  # channels of the vector from which a chunk is reconstructed
_MAX_RECONSTRUCTED = 12  # tokens of a chunk
_EVERY = 8  # tokens from one tried end to the next
_ALWAYS = 0.1  # fraction of the reconstruction cost that is added at every possible end
_LEAST = 1e-5  # smallest probability whose logarithm is taken


class Projection(nn.Linear):
    """A linear layer without bias; like the matrices of a Layer, it is trained by Muon."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)


class Router(nn.Module):
    """Predicts the probability that a chunk begins at each token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q_proj = Projection(width, width)
        self.k_proj = Projection(width, width)

    def forward(self, x: Tensor, last: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B, T, W) -> probabilities (B, T) float32, and keys (B, T, W); `last` (B, 1, W) is the previous key."""
        with torch.autocast(x.device.type, enabled=False):
            queries, keys = self.q_proj(x), self.k_proj(x)
            before = torch.cat([keys[:, :1] if last is None else last, keys[:, :-1]], dim=1)
            return (1 - F.cosine_similarity(queries.float(), before.float(), dim=-1)) / 2, keys


class RouterOutput(NamedTuple):
    x: Tensor  # (B, T, W) output of the first outer layers
    p: Tensor  # (B, T) float32, probability that a chunk begins
    positions: Tensor  # (B, T) or (1, T), position of each token in its conversation


class Autoencoder(nn.Module):
    """Reconstructs the tokens of a chunk from one narrow vector, computed at the chunk's last token.

    Tokens that such a vector cannot hold are better split, and tokens that often occur together need not be: training
    finds boundaries that keep the reconstruction cost low at a given number of chunks.
    """

    def __init__(self, width: int, hidden_size: int) -> None:
        super().__init__()
        self.squeeze = Projection(width, _BOTTLENECK)
        self.unfold = Projection(_BOTTLENECK, _MAX_RECONSTRUCTED * width)
        self.spell = Projection(width, hidden_size)

    def forward(self, routed: RouterOutput, ids: Tensor, table: Tensor, rate: float) -> Tensor:
        """Router output, ids (B, T), the head's weight (V, C) -> (B,): expected reconstruction cost, in nats a token.

        The expectation is over all segmentations, each with the router's probability. Tokens of a chunk beyond the
        reconstructed length cost as much as a uniform guess. A fraction of the reconstruction cost at every possible
        end is added, so that every position gets a gradient.
        """
        time = ids.shape[1]
        ends = torch.arange(_EVERY - 1, time - 1, _EVERY, device=ids.device)
        back = torch.arange(_MAX_RECONSTRUCTED, device=ids.device)
        tokens = (ends[:, None] - back).clamp(min=0)  # (N, K)
        nats = self._nats(routed.x[:, ends], ids[:, tokens], table)
        stays = F.pad((1 - routed.p).clamp(min=_LEAST).log().cumsum(1), (1, 0))  # (B, T + 1), before each token
        ended = routed.p[:, ends + 1]
        together = (stays[:, ends + 1, None] - stays[:, tokens + 1]).exp() * ended[..., None]
        inside = routed.positions.expand(ids.shape)[:, ends, None] >= back
        longer = (stays[:, ends + 1] - stays[:, tokens[:, -1]]).exp() * ended * inside[..., -1]
        guessed = rate * math.log(len(table)) * longer
        cost = ((together + _ALWAYS) * nats * inside).sum(dim=2) + guessed
        return cost.sum(dim=1) / max(1, len(ends))

    def _nats(self, x: Tensor, targets: Tensor, table: Tensor) -> Tensor:
        """(B, N, W), (B, N, K), (V, C) -> (B, N, K) float32: the cost of reconstructing the targets."""
        narrow = F.rms_norm(self.squeeze(x), (_BOTTLENECK,))
        states = F.silu(self.unfold(narrow).unflatten(-1, (_MAX_RECONSTRUCTED, -1)))
        logits = F.linear(self.spell(states), table).float().flatten(0, 2)
        return F.cross_entropy(logits, targets.flatten(), reduction="none").view(targets.shape)


def ratio_loss(starts: Tensor, p: Tensor, rate: float) -> Tensor:
    """(B, T) bool, (B, T) -> (B,): smallest, 1, where one token in `rate` begins a chunk (H-Net, section 2.3.2).

    Each row has its own loss, so that the result does not depend on which rows are computed together.
    """
    share, likely = starts.float().mean(dim=1), p.mean(dim=1)
    return rate / (rate - 1) * ((rate - 1) * share * likely + (1 - share) * (1 - likely))


def surprise_loss(routed: RouterOutput, nats: Tensor, rate: float) -> Tensor:
    """(B, T) nats of each target -> (B,): the router's cross-entropy of predicting the hardest tokens, in nats a token.

    One token in `rate` should begin a chunk: those that the model itself found hardest to predict. The Byte Latent
    Transformer (arXiv:2412.09871) uses another model for that; a trained router needs none.
    """
    inside = routed.positions > 0
    cost = F.pad(nats.detach()[:, :-1], (1, 0)).masked_fill(~inside, 0.0)
    most = max(1, int(cost.shape[1] / rate))
    is_hard = cost > cost.sort(dim=1, descending=True).values[:, most - 1 : most]
    chance = torch.where(is_hard, routed.p, 1 - routed.p).clamp(min=_LEAST)
    return -(chance.log() * inside).mean(dim=1)


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
