"""The trainer of karpathy/autoresearch (2026-03) with the defaults that its README recommends for small computers.

Values embedded anew in every other layer, squared ReLU, normalised queries and keys, capped logits and a head that is
not tied; Muon with Polar Express (arXiv:2505.16932), NorMuon (arXiv:2510.05491) and cautious weight decay, AdamW for
the rest; rows that begin with a document, filled to the last token. Written anew after its train.py.

Shapes: B rows, T tokens of a row, C channels, H heads, D head size, V vocabulary; matrices (N, M, K) of equal shape.
"""

import sys
from itertools import chain, count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
import torch.nn.functional as F
from learning import BATCH, Count, Data
from torch import Tensor, nn

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.model.layers import rotate
from chatmill.training.hardware import choose_compile, set_up_compiler
from chatmill.training.optimizer import Muon

ASPECT_RATIO, HEAD_SIZE = 64, 128  # channels for each layer, and of a head
GATE_CHANNELS = 32  # from which a layer computes how much of the value embedding it adds
SOFT_CAP = 15.0
RATES = {
    "embedding": 0.6,
    "head": 0.004,
    "matrix": 0.04,
    "residual": 0.005,
    "first": 0.5,
}  # the first two at 768 channels
WEIGHT_DECAY = 0.2
MOMENTA = 0.85, 0.95  # the first rises to the second in 300 steps
SQUARES_MOMENTUM = 0.95
DOCUMENTS = 1000  # that are at hand to fill a row
POLAR_EXPRESS = [
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
]


def polar_express(x: Tensor) -> Tensor:
    """(N, M, K) -> (N, M, K): singular values brought to about 1 by coefficients chosen for each step."""
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (1.02 * x.norm(dim=(-2, -1), keepdim=True) + 1e-6)
    for a, b, c in POLAR_EXPRESS:
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


class NorMuon(Muon):
    """Muon whose updates are as large in every row, or in every column of a wide matrix; their norm is as before."""

    def _direction(self, momentum: Tensor) -> Tensor:
        return self._balanced(super()._direction(momentum))

    def _balanced(self, update: Tensor) -> Tensor:
        axis = -1 if update.shape[-2] >= update.shape[-1] else -2
        squares = update.square().mean(axis, keepdim=True)
        means = self.__dict__.setdefault("means", {}).setdefault(update.shape, torch.zeros_like(squares))
        scaled = update * means.lerp_(squares, 1 - SQUARES_MOMENTUM).clamp_min(1e-10).rsqrt()
        norms = (x.norm(dim=(-2, -1), keepdim=True) for x in (update, scaled))
        return scaled * (next(norms) / next(norms).clamp_min(1e-10))


class CautiousNorMuon(NorMuon):
    """NorMuon by Polar Express, with weight decay where an update makes a weight smaller."""

    momentum, decay = MOMENTA[0], 0.0

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # no closure: gradients are computed before
        for group in self.param_groups:
            weights = torch.stack(group["params"])
            gradients = torch.stack([weight.grad for weight in group["params"]])
            state = self.state[group["params"][0]]
            momentum = state.setdefault("momentum", torch.zeros_like(gradients))
            momentum.lerp_(gradients, 1 - self.momentum)
            update = polar_express(gradients.lerp(momentum, self.momentum).to(self.precision)).to(weights.dtype)
            update = self._balanced(update)
            change = update + self.decay * weights * (update * weights >= 0)
            rate = group["lr"] * max(1.0, update.shape[-2] / update.shape[-1]) ** 0.5
            for weight, one in zip(group["params"], change, strict=True):
                weight.sub_(rate * one)


class Block(nn.Module):
    """Attention, with values of an embedding of their own where the layer has one, and feed-forward."""

    def __init__(self, width: int, vocab_size: int, has_values: bool) -> None:
        super().__init__()
        self.heads = width // HEAD_SIZE
        self.attend = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(3))
        self.project = nn.Linear(width, width, bias=False)
        self.widen, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.values = nn.Embedding(vocab_size, width) if has_values else None
        self.gate = nn.Linear(GATE_CHANNELS, self.heads, bias=False) if has_values else None

    def forward(self, x: Tensor, ids: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """(B, T, C) and (B, T) -> (B, T, C)."""
        x = x + self.project(self._attention(normalised(x), ids, rotary))
        return x + self.narrow(F.relu(self.widen(normalised(x))).square())

    def _attention(self, x: Tensor, ids: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        queries, keys, values = (linear(x).unflatten(-1, (self.heads, -1)) for linear in self.attend)
        if self.values is not None and self.gate is not None:
            added = self.values(ids).unflatten(-1, (self.heads, -1)).to(values.dtype)
            values = values + 2 * torch.sigmoid(self.gate(x[..., :GATE_CHANNELS]))[..., None] * added
        queries, keys = (normalised(rotate(part.transpose(1, 2), *rotary)).to(values.dtype) for part in (queries, keys))
        return (
            F.scaled_dot_product_attention(queries, keys, values.transpose(1, 2), is_causal=True)
            .transpose(1, 2)
            .flatten(2)
        )


class Gpt(nn.Module):
    """The model, with the initial weights of its train.py."""

    def __init__(self, vocab_size: int, depth: int) -> None:
        super().__init__()
        width = -(-depth * ASPECT_RATIO // HEAD_SIZE) * HEAD_SIZE
        self.tokens, self.head = nn.Embedding(vocab_size, width), nn.Linear(width, vocab_size, bias=False)
        self.blocks = nn.ModuleList(Block(width, vocab_size, i % 2 == (depth - 1) % 2) for i in range(depth))
        self.residual, self.first = nn.Parameter(torch.ones(depth)), nn.Parameter(torch.full((depth,), 0.1))
        bound = (3 / width) ** 0.5
        nn.init.normal_(self.head.weight, std=0.001)
        for name, weight in self.blocks.named_parameters():
            if name.endswith(("project.weight", "narrow.weight", "gate.weight")):
                nn.init.zeros_(weight)
            else:
                nn.init.uniform_(weight, -bound, bound)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, V) float32."""
        angles = torch.arange(ids.shape[1])[:, None] * 10_000 ** (-torch.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
        rotary = angles.cos()[None, None], angles.sin()[None, None]
        x = start = normalised(self.tokens(ids))
        for i, block in enumerate(self.blocks):
            x = block(self.residual[i] * x + self.first[i] * start, ids, rotary)
        return SOFT_CAP * torch.tanh(self.head(normalised(x)).float() / SOFT_CAP)


def normalised(x: Tensor) -> Tensor:
    """(…, C) -> (…, C) of root mean square 1."""
    return F.rms_norm(x, (x.shape[-1],))


class Autoresearch:
    """Trains it on `batch` tokens a step, in batches of 4,096; `typical` is the seconds of a step of 4,096 tokens."""

    def __init__(
        self,
        data: Data,
        config: ModelConfig,
        seconds: float,
        typical: float = 0.1,
        *,
        batch: int = 1 << 14,
        precision: str = "bfloat16",
        compile: str | bool = "auto",
        seed: int = 1,
    ) -> None:
        set_up_compiler()
        torch.manual_seed(seed)
        random, documents = np.random.default_rng(seed), len(data.train.offsets) - 1
        self.order = chain.from_iterable(random.permutation(documents) for _ in count())
        self.split, self.precision, self.context = data.train, precision, config.max_position_embeddings
        self.waiting: list[np.ndarray] = []
        self.rows, self.batches = BATCH // self.context, batch // BATCH
        self.model = Gpt(data.vocab_size, config.num_hidden_layers)
        width = self.model.tokens.embedding_dim
        tables = [block.values.weight for block in self.model.blocks if block.values]
        matrices = [w for w in self.model.blocks.parameters() if not any(w is table for table in tables)]
        scale = (width / 768) ** -0.5
        groups = [
            {"params": [self.model.tokens.weight, *tables], "lr": RATES["embedding"] * scale},
            {"params": [self.model.head.weight], "lr": RATES["head"] * scale},
            {"params": [self.model.residual], "lr": RATES["residual"]},
            {"params": [self.model.first], "lr": RATES["first"], "betas": (0.96, 0.95)},
        ]
        adam = torch.optim.AdamW(groups, betas=(0.8, 0.95), eps=1e-10, weight_decay=0.0)
        self.optimizers = [CautiousNorMuon(matrices, RATES["matrix"], torch.bfloat16), adam]
        self.full_rates = [[group["lr"] for group in each.param_groups] for each in self.optimizers]
        operations = 6 * sum(w.numel() for w in self.model.parameters()) * BATCH * seconds / typical
        is_compiled = choose_compile(compile, precision, operations, torch.get_num_threads())
        self.loss = torch.compile(self._loss, dynamic=False) if is_compiled else self._loss

    def step(self, done: int, steps: int) -> Count:
        for _ in range(self.batches):
            rows = torch.from_numpy(np.stack([self._row() for _ in range(self.rows)]))
            with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bfloat16"):
                loss = self.loss(rows)
            (loss / self.batches).backward()
        self._update(done, steps)
        tokens = self.batches * self.rows * self.context
        return Count(tokens, tokens)

    def logits(self, ids: Tensor) -> Tensor:
        return self.model(ids)

    def _loss(self, rows: Tensor) -> Tensor:
        return F.cross_entropy(self.model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    def _update(self, done: int, steps: int) -> None:
        """The rate is constant for half of the steps, and falls to 0; the decay falls all the time."""
        muon, share = self.optimizers[0], min(1.0, 2 * (1 - done / steps))
        low, high = MOMENTA
        muon.momentum, muon.decay = low + min(1.0, done / 300) * (high - low), WEIGHT_DECAY * (1 - done / steps)
        for optimizer, rates in zip(self.optimizers, self.full_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = share * rate
            optimizer.step()
            optimizer.zero_grad()

    def _row(self) -> np.ndarray:
        """(T + 1,) int64: the longest of the waiting documents that fit, and in the end a part of the shortest."""
        room, parts = self.context + 1, []
        while room:
            while len(self.waiting) < DOCUMENTS:
                start, end = self.split.offsets[(i := next(self.order)) : i + 2]
                self.waiting.append(self.split.ids[start:end])
            lengths = [len(document) for document in self.waiting]
            fitting = max((length for length in lengths if length <= room), default=min(lengths))
            parts.append(self.waiting.pop(lengths.index(fitting))[:room])
            room -= len(parts[-1])
        return np.concatenate(parts).astype(np.int64)
