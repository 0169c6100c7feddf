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
from learning import BATCH, Chatmill, Data, measure, prepared, run, source
from torch import nn

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.model.chat_model import ChatModel
from chatmill.training import optimizer
from chatmill.training import trainer as training
from chatmill.training.optimizer import Optimizers, adamw
from chatmill.training.packing import Batch
from chatmill.training.trainer import LossTotals, Trainer

CONTEXT, VOCAB_SIZE = 512, 2048


def adamw_alone(model: ChatModel, learning_rate: float, precision: torch.dtype) -> Optimizers:
    """AdamW for the matrices, too."""
    return adamw(model, learning_rate)


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
    "batch from 1024 to 4096": {"trainer": BatchRamp},
    "batch from 1024 to 4096, rate 0.018": {"trainer": BatchRamp, "rate": 0.018},
    "short rows at first": {"short_first": 0.7},
    "queries begin at 1.5": {"change": larger_queries(1.5)},
    "queries begin at 2.5": {"change": larger_queries(2.5)},
    "momentum 0.9": {"constants": {"_MOMENTUM": 0.9}},
    "momentum 0.95": {"constants": {"_MOMENTUM": 0.95}},
    "embedding rate 0.45": {"constants": {"_EMBEDDING_RATE_FACTOR": 0.45}},
    "embedding rate 1.8": {"constants": {"_EMBEDDING_RATE_FACTOR": 1.8}},
    "cosine": {"schedule": cosine},
    "constant": {"schedule": constant},
    "no warm-up": {"schedule": linear(0, 0.5)},
    "warm-down over all": {"schedule": linear(0.02, 1.0)},
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
