"""The effect of each choice of training: bits per byte on held-out text, with one choice changed at a time.

    python tests/benchmarks/ablation.py FORMAT=FILE … [--seconds S | --steps N] [--depth D] [--threads N]
                                        [--seeds N] [--only NAME …]

All runs train for the same time, or for the same tokens, those of the given steps of 4,096: then the result holds for
any machine, but ignores the time that a choice takes. Schedules span the run. The first row of each seed is what the
stage train_model does; the other rows show their difference from it. Bits per byte are of all text and of the
assistant's, tokens/s leave out padding. Nothing is compiled.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
import torch.nn.functional as F
from learning import BATCH, Chatmill, Data, measure, prepared, run, source
from torch import Tensor, nn

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.model.chat_model import ChatModel
from chatmill.model.layers import conversation_mask
from chatmill.training import optimizer
from chatmill.training import trainer as training
from chatmill.training.optimizer import Optimizers, adamw, muon_adamw
from chatmill.training.packing import Batch
from chatmill.training.trainer import LossTotals, Trainer

CONTEXT, VOCAB_SIZE = 512, 2048


def adamw_alone(model: ChatModel, learning_rate: float, precision: torch.dtype) -> Optimizers:
    """AdamW for the matrices, too."""
    return adamw(model, learning_rate)


class Clipping(Optimizers):
    """Clips gradients to a norm of 1."""

    def step(self, factor: float) -> None:
        weights = [w for each in self.optimizers for group in each.param_groups for w in group["params"]]
        nn.utils.clip_grad_norm_(weights, 1.0)
        super().step(factor)


class ZLoss(Trainer):
    """Adds the z-loss, which keeps the logits' normaliser near 1."""

    def _nats(
        self, ids: Tensor, positions: Tensor, conversations: Tensor, targets: Tensor, *_: Any
    ) -> tuple[Tensor, Tensor | None]:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bfloat16"):
            logits = self.model(ids, positions, conversation_mask(conversations))
        logits = logits.float().flatten(0, 1)
        nats = F.cross_entropy(logits, targets.flatten(), reduction="none")
        return (nats + 1e-4 * logits.logsumexp(-1) ** 2).view(targets.shape), None


class CautiousDecay(Optimizers):
    """Weight decay of 0.1, only where an update makes a weight smaller."""

    @torch.no_grad()
    def step(self, factor: float) -> None:
        weights = [w for group in self.optimizers[0].param_groups for w in group["params"]]
        before = [weight.clone() for weight in weights]
        super().step(factor)
        for weight, old in zip(weights, before, strict=True):
            weight.sub_(0.1 * self.learning_rate * old * ((weight - old) * old < 0))


class BatchRamp(Trainer):
    """A quarter of the batch in a step of the first third of the run, half of it in the second; all read as much."""

    def step(self, batches: Sequence[Batch]) -> LossTotals:
        completed, totals = self.completed_steps, LossTotals()
        parts = (4, 2, 1)[min(2, 3 * completed // self.steps)]
        rows = [
            [None if array is None else array[i : i + 1] for array in batch]
            for batch in batches
            for i in range(len(batch.ids))
        ]
        for part in np.array_split(np.arange(len(rows)), parts):
            self.completed_steps = completed
            totals = totals.plus(super().step([Batch(*map(joined, zip(*(rows[i] for i in part), strict=True)))]))
        return totals


class TailAverage(Trainer):
    """The weights in the end are their mean over the last tenth of the steps."""

    def step(self, batches: Sequence[Batch]) -> LossTotals:
        totals = super().step(batches)
        weights = [weight.detach() for weight in self.model.parameters()]
        if self.completed_steps <= 0.9 * self.steps:
            self.sums, self.number = [torch.zeros_like(weight) for weight in weights], 0
        else:
            self.number += 1
            for total, weight in zip(self.sums, weights, strict=True):
                total += weight
        if self.completed_steps >= self.steps and self.number:
            for total, weight in zip(self.sums, weights, strict=True):
                weight.copy_(total / self.number)
        return totals


class OuterNesterov(Trainer):
    """Every five steps, a step of Nesterov's momentum along what they have changed (arXiv:2311.08105)."""

    def step(self, batches: Sequence[Batch]) -> LossTotals:
        weights = [weight.detach() for weight in self.model.parameters()]
        if self.completed_steps == 0:
            self.outer = [weight.clone() for weight in weights]
            self.momenta = [torch.zeros_like(weight) for weight in weights]
        totals = super().step(batches)
        if self.completed_steps % 5 == 0:
            for weight, outer, momentum in zip(weights, self.outer, self.momenta, strict=True):
                change = weight - outer
                momentum.mul_(0.5).add_(change, alpha=0.5)
                outer.add_(change, alpha=0.75).add_(momentum, alpha=0.5)
                weight.copy_(outer)
        return totals


class Growing(Trainer):
    """Only the first half of the layers is there in the first third of the steps; the others start as the identity."""

    def step(self, batches: Sequence[Batch]) -> LossTotals:
        decoder, layers = self.model.model, self.model.model.layers
        half = (len(layers) + 1) // 2
        if self.completed_steps < self.steps / 3:
            decoder.layers = layers[:half]
            for weight in layers[half:].parameters():
                weight.grad = torch.zeros_like(weight)
        totals = super().step(batches)
        decoder.layers = layers
        return totals


class Scaffold(Trainer):
    """Embeddings of hashed pairs of tokens are added to those of tokens, with a weight that is 0 from mid-run on."""

    rows = 1 << 14

    def __init__(self, model: ChatModel, *arguments: Any, **options: Any) -> None:
        super().__init__(model, *arguments, **options)
        self.table = nn.Parameter(torch.zeros(self.rows, model.config.hidden_size))
        self.adam = torch.optim.AdamW([self.table], lr=0.02, betas=(0.8, 0.95), weight_decay=0.0)
        decoder, trainer = model.model, self

        def forward(
            ids: Tensor, table: Tensor, rotary: Any, mask: Tensor | None, cache: Any, *, last_only: bool
        ) -> tuple[Tensor, None]:
            weight = max(0.0, 1 - 2 * trainer.completed_steps / trainer.steps)
            pairs = F.pad(ids, (1, 0))[:, :-1] * 1_000_003 + ids * 7_919
            x = F.embedding(ids, table) + weight * F.embedding(pairs % trainer.rows, trainer.table)
            for layer in decoder.layers:
                x = layer(x, rotary, mask, cache)
            return decoder.norm(x), None

        model.model.forward = forward

    def step(self, batches: Sequence[Batch]) -> LossTotals:
        totals = super().step(batches)
        self.adam.step()
        self.adam.zero_grad()
        return totals


def softly_capped(cap: float) -> Callable[[ChatModel], None]:
    """A function that caps a model's logits by a scaled tanh."""

    def change(model: ChatModel) -> None:
        plain = model.forward

        def forward(*arguments: Any, **options: Any) -> Tensor:
            return cap * torch.tanh(plain(*arguments, **options) / cap)

        def nats(ids: Tensor, positions: Tensor, mask: Tensor, targets: Tensor, *_: Any) -> tuple[Tensor, None]:
            logits = forward(ids, positions, mask).float().flatten(0, 1)
            return F.cross_entropy(logits, targets.flatten(), reduction="none").view(targets.shape), None

        model.forward, model.nats = forward, nats

    return change


def joined(arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Some arrays (1, T) as one (B, T)."""
    return None if arrays[0] is None else np.concatenate(arrays)


def larger_queries(factor: float) -> Callable[[ChatModel], None]:
    """A function that lets the gains of a model's normalised queries begin at this value."""

    def change(model: ChatModel) -> None:
        for layer in model.model.layers:
            nn.init.constant_(layer.self_attn.q_norm.weight, factor)

    return change


def cosine(done: int, steps: int) -> float:
    """A short warm-up, then half a cosine."""
    return min(1.0, (done + 1) / max(1, steps // 50), 0.5 + 0.5 * math.cos(math.pi * done / steps))


def constant(done: int, steps: int) -> float:
    """A short warm-up, then the full rate to the end."""
    return min(1.0, (done + 1) / max(1, steps // 50))


def linear(warm_up: float, warm_down: float) -> Callable[[int, int], float]:
    """A linear warm-up and a linear decay over fractions of the steps."""
    return lambda done, steps: min(
        1.0, (done + 1) / max(1, warm_up * steps), (steps - done) / max(1, warm_down * steps)
    )


NGRAMS = {"ngram_order": 5}
CHOICES: dict[str, dict[str, Any]] = {
    "default": {},
    "AdamW alone, rate 0.002": {"optimizer": adamw_alone, "rate": 0.002},
    "AdamW alone, rate 0.004": {"optimizer": adamw_alone, "rate": 0.004},
    "AdamW alone, rate 0.008": {"optimizer": adamw_alone, "rate": 0.008},
    "rate 0.008": {"rate": 0.008},
    "rate 0.018": {"rate": 0.018},
    "batch 1024": {"batch": 1024},
    "batch 2048": {"batch": 2048},
    "batch 2048, rate 0.018": {"batch": 2048, "rate": 0.018},
    "batch 8192": {"batch": 8192},
    "random start": {"start": "random"},
    "head not tied": {"tied": False},
    "n-gram teacher": {"teacher": NGRAMS},
    "n-gram teacher, weight 0.9": {"teacher": NGRAMS, "teacher_weight": 0.9},
    "n-gram teacher, batch 2048, rate 0.018": {"teacher": NGRAMS, "batch": 2048, "rate": 0.018},
    "cautious weight decay": {"optimizer": lambda *given: CautiousDecay(muon_adamw(*given).optimizers)},
    "batch from 1024 to 4096": {"trainer": BatchRamp},
    "batch from 1024 to 4096, rate 0.018": {"trainer": BatchRamp, "rate": 0.018},
    "short rows at first": {"short_first": 0.7},
    "queries begin at 1.5": {"change": larger_queries(1.5)},
    "queries begin at 2.5": {"change": larger_queries(2.5)},
    "average of the last tenth": {"trainer": TailAverage},
    "outer Nesterov steps": {"trainer": OuterNesterov},
    "half the layers at first": {"trainer": Growing},
    "hashed pairs as a scaffold": {"trainer": Scaffold},
    "momentum 0.9": {"constants": {"_MOMENTUM": 0.9}},
    "momentum 0.95": {"constants": {"_MOMENTUM": 0.95}},
    "embedding rate 0.45": {"constants": {"_EMBEDDING_RATE_FACTOR": 0.45}},
    "embedding rate 1.8": {"constants": {"_EMBEDDING_RATE_FACTOR": 1.8}},
    "cosine": {"schedule": cosine},
    "constant": {"schedule": constant},
    "no warm-up": {"schedule": linear(0, 0.5)},
    "warm-down over all": {"schedule": linear(0.02, 1.0)},
    "gradients clipped to 1": {"optimizer": lambda *given: Clipping(muon_adamw(*given).optimizers)},
    "z-loss 1e-4": {"trainer": ZLoss},
    "soft cap 15": {"change": softly_capped(15.0)},
    "soft cap 30": {"change": softly_capped(30.0)},
    "float32": {"precision": "float32"},
    "bfloat16": {"precision": "bfloat16"},
    "prompt_loss_weight 0": {"prompt_weight": 0.0},
    "prompt_loss_weight 1": {"prompt_weight": 1.0},
}


def train(folder: str, choice: str, seed: int, seconds: float, steps: int | None, depth: int) -> dict[str, Any]:
    """Train with one choice changed, and return the results."""
    data, changes = Data(Path(folder)), dict(CHOICES[choice])
    config = ModelConfig.from_depth(depth, vocab_size=data.vocab_size, context=CONTEXT)
    constants = {"_MOMENTUM": optimizer._MOMENTUM} | changes.pop("constants", {})
    schedule = changes.pop("schedule", training.learning_rate_factor)
    change = changes.pop("change", lambda model: None)

    with patch.multiple(optimizer, **constants), patch.object(training, "learning_rate_factor", schedule):
        learner = Chatmill(data, config, seconds, seed=seed, compile=False, **changes)
        change(learner.model)
        limit = steps and steps * BATCH // changes.get("batch", BATCH)
        return measure(learner, data, CONTEXT, seconds, limit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sources", nargs="+", type=source, metavar="FORMAT=FILE")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=CHOICES, default=list(CHOICES), metavar="NAME")
    options = parser.parse_args()
    common = {"seconds": options.seconds, "steps": options.steps, "depth": options.depth}
    print(f"{'':40}{'seed':>5}{'all':>8}{'':9}{'assistant':>10}{'':9}{'tokens/s':>10}{'steps':>7}")
    with prepared(dict(options.sources), VOCAB_SIZE, validation_share=0.015) as folder:
        for seed in range(1, options.seeds + 1):
            first: dict[str, Any] = {}
            for choice in dict.fromkeys(["default", *options.only]):
                result = run(__file__, common | {"folder": folder, "choice": choice, "seed": seed}, options.threads)
                first = first or result
                bits = "".join(f"{result[k]:8.3f} {result[k] / first[k] - 1:+7.1%} " for k in ("all", "assistant"))
                speed = f"{result['tokens_per_second']:10,.0f}{result['steps']:7}"
                print(f"{choice:40}{seed:5}{bits} {speed}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        print(json.dumps(train(**json.loads(sys.argv[2]))))
    else:
        main()
