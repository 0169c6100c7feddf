"""Scores text with an engine: maps windows of ids to the nats of their tokens.

It imports PyTorch only for a model that runs in it, so that exports can be scored where PyTorch is not installed.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from chatmill.engines.engine import Engine, make_chat_batch
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


def make_prefix_scorer(engine: Engine) -> WindowScorer:
    """A scorer of one window after another, which reads the tokens that a window shares with the one before only once.

    An engine that cannot continue a sequence scores each by itself.
    """
    batch, _ = make_chat_batch(engine, 1)
    chat = batch.join()
    if not chat.continues:
        return make_scorer(engine)

    def score_windows(windows: list[Ids]) -> list[np.ndarray]:
        before, nats = np.empty(0, np.int64), np.empty(0)
        result = []
        for ids in progress(windows, engine.name, unit="text"):
            cached = max(0, min(_shared(before, ids), len(before) - 1, len(ids) - 1) - 1)  # the last one gives logits
            chat.rewind(cached)
            nats = np.concatenate(
                [nats[:cached], nats_of_logits(chat.append_all(ids[cached:-1].tolist()), ids[cached:])]
            )
            before = ids
            result.append(nats)
        return result

    return score_windows


def _shared(first: Ids, second: Ids) -> int:
    size = min(len(first), len(second))
    different = np.flatnonzero(first[:size] != second[:size])
    return int(different[0]) if len(different) else size
