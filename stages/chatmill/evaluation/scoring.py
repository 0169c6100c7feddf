"""How models score text: from windows of ids to the nats of their tokens.

Needs no engine's code, and PyTorch only for a model that runs in it: exports are scored where it is not installed.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from chatmill.evaluation.bits_per_byte import Ids, WindowScorer, nats_of_logits
from chatmill.pipeline.progress import progress

if TYPE_CHECKING:
    from chatmill.model.chat_model import ChatModel


class ScoringEngine(Protocol):
    """An engine, as far as text is scored."""

    name: str

    def sequence_logits(self, ids: Sequence[int]) -> np.ndarray:
        """Logits (T, V) after each position of a whole sequence."""


@runtime_checkable
class OwnNetwork(Protocol):
    """An engine that runs our own network in PyTorch, which can score many windows at a time."""

    model: "ChatModel"


def make_scorer(engine: ScoringEngine) -> WindowScorer:
    """In batches where the engine runs our own network, else one window after another."""
    if isinstance(engine, OwnNetwork):
        from chatmill.evaluation.batch_scoring import make_batch_scorer

        return make_batch_scorer(engine.model)

    def score_windows(windows: list[Ids]) -> list[np.ndarray]:
        return [
            nats_of_logits(engine.sequence_logits(ids.tolist()), ids)
            for ids in progress(windows, engine.name, unit="text")
        ]

    return score_windows
