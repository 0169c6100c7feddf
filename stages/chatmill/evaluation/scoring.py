"""Scores text with an engine: maps windows of ids to the nats of their tokens.

It imports PyTorch only for a model that runs in it, so that exports can be scored where PyTorch is not installed.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from chatmill.evaluation.bits_per_byte import Ids, WindowScorer, nats_of_logits
from chatmill.pipeline.progress import progress

if TYPE_CHECKING:
    from chatmill.model.chat_model import ChatModel

BATCH_LOGITS = {"cpu": 2**21, "cuda": 2**27}  # 8 MB on a CPU, where eight times as many took 1.5 times as long


class ScoringEngine(Protocol):
    """The part of an engine that is needed to score text."""

    name: str

    def sequence_logits(self, ids: Sequence[int]) -> np.ndarray:
        """Logits (T, V) after each position of a complete sequence."""


def make_scorer(engine: ScoringEngine) -> WindowScorer:
    """A scorer in batches for the project's own network, or of one window at a time for other engines."""
    if (network := getattr(engine, "model", None)) is not None:
        return make_batch_scorer(network)

    def score_windows(windows: list[Ids]) -> list[np.ndarray]:
        return [
            nats_of_logits(engine.sequence_logits(ids[:-1].tolist()), ids)
            for ids in progress(windows, engine.name, unit="text")
        ]

    return score_windows


def make_batch_scorer(model: "ChatModel") -> WindowScorer:
    """A scorer that batches windows of similar length; padding comes last, where causal attention ignores it."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    device = model.model.embed_tokens.weight.device
    max_logits = BATCH_LOGITS.get(device.type, BATCH_LOGITS["cpu"])

    @torch.inference_mode()
    def score_windows(windows: list[np.ndarray]) -> list[np.ndarray]:
        result = [np.empty(0)] * len(windows)
        groups = group_by_size([len(ids) * model.config.vocab_size for ids in windows], max_logits)
        for group in progress(groups, "pytorch", unit="batch"):
            rows = [torch.from_numpy(windows[index].astype(np.int64)) for index in group]
            ids = pad_sequence(rows, batch_first=True).to(device)
            nats, _ = model.nats(ids[:, :-1], None, None, ids[:, 1:])
            for index, row in zip(group, nats.double().cpu().numpy(), strict=True):
                result[index] = row[: len(windows[index]) - 1]
        return result

    return score_windows


def group_by_size(sizes: list[int], max_size: int) -> list[list[int]]:
    """Indices in groups by size; a group padded to its largest size fits into `max_size`, or has one index."""
    result: list[list[int]] = []
    for index in sorted(range(len(sizes)), key=sizes.__getitem__):
        if not result or (len(result[-1]) + 1) * sizes[index] > max_size:
            result.append([])
        result[-1].append(index)
    return result
