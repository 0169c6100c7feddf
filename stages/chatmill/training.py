"""What a training step is made of: the loss of its batches, and how the machine at hand computes it best.

Shapes: B rows, T tokens of a row, V vocabulary.
"""

import math
import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from chatmill.model import ChatModel
from chatmill.optimizer import Optimizer, rate_at
from chatmill.packing import Batch
from chatmill.template import Loss

Precision = Literal["float32", "bfloat16"]
_WORTH_COMPILING = 3e13  # operations a thread, five minutes: compiling takes 45 s and saves a quarter of the time


def choose_precision(asked: Literal["auto", "float32", "bfloat16"]) -> Precision:
    """What was asked for; for `auto` bfloat16, where the processor multiplies it."""
    if asked != "auto":
        return asked
    abilities = torch.cpu.get_capabilities()
    return "bfloat16" if abilities.get("avx512_bf16") or abilities.get("amx_bf16") else "float32"


def choose_compile(asked: bool | Literal["auto"], precision: Precision, operations: float, threads: int) -> bool:
    """What was asked for; for `auto` whether it pays: with bfloat16, a long run and a C++ compiler."""
    if asked != "auto":
        return asked
    headers = Path(sysconfig.get_paths()["include"], "Python.h").exists()
    able = headers and (shutil.which("g++") or shutil.which("clang++"))
    return bool(able) and precision == "bfloat16" and operations > _WORTH_COMPILING * threads


class Sums(NamedTuple):
    """What is added up over batches."""

    weighted_nats: float = 0.0
    weight: float = 0.0
    nats: float = 0.0  # of trained text
    bytes: int = 0  # of trained text

    def plus(self, other: "Sums") -> "Sums":
        """Both together."""
        return Sums(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def loss(self) -> float:
        """Weighted mean, in nats a token."""
        return self.weighted_nats / self.weight

    @property
    def bits_per_byte(self) -> float | None:
        """Of trained text; None where there is none."""
        return self.nats / (math.log(2) * self.bytes) if self.bytes else None


def attention_mask(conversations: Tensor) -> Tensor:
    """(B, T) -> (B, 1, T, T) bool: a token sees itself and what is before it in its own conversation."""
    return (conversations[:, :, None] == conversations[:, None]).tril()[:, None]


class Trainer:
    """A model that learns for `steps` steps, or is measured, batch by batch.

    `num_bytes` (V,) are the bytes of text of each id; `prompt_weight` is the loss weight of what the assistant reads.
    """

    def __init__(
        self,
        model: ChatModel,
        optimizer: Optimizer,
        num_bytes: Tensor,
        *,
        steps: int,
        prompt_weight: float,
        precision: Precision,
        compiled: bool,
    ) -> None:
        self.model, self.optimizer, self.num_bytes = model, optimizer, num_bytes
        self.steps, self.done, self.precision = steps, 0, precision
        self.weights = torch.zeros(len(Loss))
        self.weights[Loss.PROMPT], self.weights[Loss.TRAINED] = prompt_weight, 1.0
        self.nats = torch.compile(self._nats, dynamic=False) if compiled else self._nats

    def step(self, batches: Sequence[Batch]) -> Sums:
        """Learn from all of the batches at once. Raises ValueError where the loss is no number any more."""
        total = sum(self.weights[torch.from_numpy(batch.loss)].sum().item() for batch in batches)
        sums = Sums()
        for batch in batches:
            weighted, of_batch = self._loss(batch)
            (weighted / total).backward()
            sums = sums.plus(of_batch)
        if not math.isfinite(sums.loss):
            raise ValueError(f"step {self.done + 1}: the loss is {sums.loss}: lower the learning rate")
        self.optimizer.step(rate_at(self.done, self.steps))
        self.done += 1
        return sums

    @torch.no_grad()
    def measure(self, batches: Sequence[Batch]) -> Sums:
        """The same sums, and nothing learnt."""
        sums = Sums()
        for batch in batches:
            sums = sums.plus(self._loss(batch)[1])
        return sums

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` goes on from."""
        return {"done": self.done, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict` was taken."""
        self.done = state["done"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def _loss(self, batch: Batch) -> tuple[Tensor, Sums]:
        """The weighted nats of a batch, to derive; and all its sums."""
        ids, positions, conversations, targets, loss = map(torch.from_numpy, batch)
        nats, weights = self.nats(ids, positions, conversations, targets), self.weights[loss]
        weighted = (nats * weights).sum()
        num_bytes = self.num_bytes[targets] * (loss == Loss.TRAINED)
        text = nats.detach()[num_bytes > 0].double().sum()
        return weighted, Sums(weighted.detach().item(), weights.sum().item(), text.item(), num_bytes.sum().item())

    def _nats(self, ids: Tensor, positions: Tensor, conversations: Tensor, targets: Tensor) -> Tensor:
        """Four (B, T) -> (B, T) float32: what each target costs."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bfloat16"):
            logits = self.model(ids, positions, attention_mask(conversations))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
