"""Scores text with an engine: maps windows of ids to the nats of their tokens.

It imports PyTorch only for a model that runs in it, so that exports can be scored where PyTorch is not installed.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from chatmill.evaluation.bits_per_byte import Ids, WindowScorer, nats_of_logits
from chatmill.pipeline.progress import progress

if TYPE_CHECKING:
    from chatmill.model.chat_model import ChatModel


class ScoringEngine(Protocol):
    """The part of an engine that is needed to score text."""

    name: str

    def sequence_logits(self, ids: Sequence[int]) -> np.ndarray:
        """Logits (T, V) after each position of a complete sequence."""


@runtime_checkable
class OwnNetwork(Protocol):
    """An engine that runs the project's own network in PyTorch, which scores windows in batches."""

    model: "ChatModel"


def make_scorer(engine: ScoringEngine) -> WindowScorer:
    """A scorer in batches for the project's own network, or of one window at a time for other engines."""
    if isinstance(engine, OwnNetwork):
        from chatmill.evaluation.batch_scoring import make_batch_scorer

        return make_batch_scorer(engine.model)

    def score_windows(windows: list[Ids]) -> list[np.ndarray]:
        return [
            nats_of_logits(engine.sequence_logits(ids[:-1].tolist()), ids)
            for ids in progress(windows, engine.name, unit="text")
        ]

    return score_windows
