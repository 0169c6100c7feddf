"""Where chunks begin, and how that is learnt.

Shapes: B batch, T time (tokens), V vocabulary, C channels, W channels of the outer layers, N ends that a chunk is read
back from, K tokens of it.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_BOTTLENECK = 16  # channels from which a chunk is read back
_MAX_RECONSTRUCTED = 12  # tokens of a chunk, at most
_EVERY = 8  # tokens, one end is tried
_ALWAYS = 0.1  # of what reading back costs wherever a chunk might end
_LEAST = 1e-5  # of a chance whose logarithm is taken


class Projection(nn.Linear):
    """A matrix alone, learnt as the matrices of a Layer are."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)


class Router(nn.Module):
    """How likely a chunk begins at each token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q_proj = Projection(width, width)
        self.k_proj = Projection(width, width)

    def forward(self, x: Tensor, last: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B, T, W) -> (B, T) float32 from 0 to 1, and keys (B, T, W); `last` (B, 1, W) is that of the token before."""
        with torch.autocast(x.device.type, enabled=False):
            queries, keys = self.q_proj(x), self.k_proj(x)
            before = torch.cat([keys[:, :1] if last is None else last, keys[:, :-1]], dim=1)
            return (1 - F.cosine_similarity(queries.float(), before.float(), dim=-1)) / 2, keys


class RouterOutput(NamedTuple):
    """What a router was told, and what it made of it."""

    x: Tensor  # (B, T, W) what the outer layers read
    p: Tensor  # (B, T) float32, how likely a chunk begins
    positions: Tensor  # (B, T) or (1, T), how many tokens of its conversation come before each


class Autoencoder(nn.Module):
    """Reads the tokens of a chunk back from one narrow vector, made where the chunk ends.

    What such a vector cannot hold is better cut, and what often comes together need not be: so boundaries are learnt
    that keep the cost of reading back low, at a given number of chunks.
    """

    def __init__(self, width: int, hidden_size: int) -> None:
        super().__init__()
        self.squeeze = Projection(width, _BOTTLENECK)
        self.unfold = Projection(_BOTTLENECK, _MAX_RECONSTRUCTED * width)
        self.spell = Projection(width, hidden_size)

    def forward(self, routed: RouterOutput, ids: Tensor, table: Tensor, rate: float) -> Tensor:
        """The routed tokens (B, T), and the head's rows (V, C), -> (B,) nats a token, expected.

        The mean is over all ways to cut, each as likely as the router says. Of chunks longer than are read back, what
        is beyond costs as much as to guess. A share of what reading costs wherever a chunk might end is added, so that
        it is learnt everywhere.
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
        """(B, N, W), (B, N, K), (V, C) -> (B, N, K) float32: what it costs to read the targets back."""
        narrow = F.rms_norm(self.squeeze(x), (_BOTTLENECK,))
        states = F.silu(self.unfold(narrow).unflatten(-1, (_MAX_RECONSTRUCTED, -1)))
        logits = F.linear(self.spell(states), table).float().flatten(0, 2)
        return F.cross_entropy(logits, targets.flatten(), reduction="none").view(targets.shape)


def ratio_loss(starts: Tensor, p: Tensor, rate: float) -> Tensor:
    """(B, T) bool, (B, T) -> (B,): least, 1, where one token in `rate` begins a chunk (H-Net, section 2.3.2).

    Of each row by itself, so that it matters not which rows are computed together.
    """
    share, likely = starts.float().mean(dim=1), p.mean(dim=1)
    return rate / (rate - 1) * ((rate - 1) * share * likely + (1 - share) * (1 - likely))


def surprise_loss(routed: RouterOutput, nats: Tensor, rate: float) -> Tensor:
    """What each target cost, (B, T) -> (B,) nats a token, of telling which cost most.

    One in `rate` is to begin a chunk: where the model itself found it hard to say what comes. The Byte Latent
    Transformer (arXiv:2412.09871) asks another model; the router needs none once it is trained.
    """
    inside = routed.positions > 0
    cost = F.pad(nats.detach()[:, :-1], (1, 0)).masked_fill(~inside, 0.0)
    most = max(1, int(cost.shape[1] / rate))
    is_hard = cost > cost.sort(dim=1, descending=True).values[:, most - 1 : most]
    chance = torch.where(is_hard, routed.p, 1 - routed.p).clamp(min=_LEAST)
    return -(chance.log() * inside).mean(dim=1)
