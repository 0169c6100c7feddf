"""Detects a loss that diverges, and describes the conversations on which it did."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from chatmill.tokenizer.vocabulary.vocabulary import TEXT_KINDS, Vocabulary
from chatmill.training.chains import Row
from chatmill.training.packing import PackedDataset

_HISTORY = 64  # steps that a loss is compared with
_MIN_HISTORY = 16  # steps; before, a loss is compared with the first
_MAX_DEVIATIONS = 8.0  # median deviations over the median; ordinary steps, of 1,000 tokens too, stayed below 5.4
_MIN_RISE = 1.0  # nats over the median, at least
_PATIENCE = 10  # steps that a spike may last: most are gone after one hard batch
_NAMED, _QUOTED, _WORDS = 20, 3, 48  # conversations, those quoted, and the characters quoted of each


class LossWatch:
    """Stops a run whose loss is not finite, or rose suddenly and stays high."""

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=_HISTORY)
        self.spike: list[tuple[int, float, str]] = []  # steps, losses and conversations since it began

    def check(self, step: int, loss: float, conversations: Callable[[], str]) -> None:
        """Record a step's loss; raises ValueError if training diverges. `conversations` describes those of the step."""
        if not math.isfinite(loss):
            raise ValueError(_advice(f"step {step}: the loss is {loss}", conversations()))
        if loss <= self.limit():
            self.losses.append(loss)
            self.spike = []
            return
        self.spike.append((step, loss, "" if self.spike else conversations()))
        if len(self.spike) > _PATIENCE:
            first, height, read = self.spike[0]
            change = f"rose from {median(self.losses):.2f} to {height:.2f} and is {loss:.2f} {_PATIENCE} steps later"
            raise ValueError(_advice(f"step {first}: the loss {change}", read))

    def limit(self) -> float:
        """The loss above which a step is a spike."""
        if len(self.losses) < _MIN_HISTORY:
            return self.losses[0] + _MIN_RISE if self.losses else math.inf
        middle = median(self.losses)
        spread = median(abs(loss - middle) for loss in self.losses)
        return middle + max(_MIN_RISE, _MAX_DEVIATIONS * spread)

    def state_dict(self) -> dict[str, Any]:
        """The state that `load_state_dict` restores."""
        return {"losses": list(self.losses), "spike": self.spike}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        self.losses.extend(state["losses"])
        self.spike = state["spike"]


def _advice(problem: str, conversations: str) -> str:
    return f"{problem}: lower train_model.learning_rate, or look at the conversations of the step: {conversations}"


def describe_conversations(dataset: PackedDataset, rows: Sequence[Row], vocabulary: Vocabulary) -> str:
    """The line numbers of the rows' conversations, longest first; of the first few, also their first words."""
    members = np.concatenate([row.conversations for row in rows])
    members = members[np.argsort(-dataset.spans.lengths[members], kind="stable")]
    numbers = np.searchsorted(dataset.split.offsets, dataset.spans.starts[members], side="right") - 1
    names = [f"{i + 1} {_first_words(dataset, i, vocabulary)!r}" for i in numbers[:_QUOTED]]
    names += [f"{i + 1}" for i in numbers[_QUOTED:_NAMED]]
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return f"lines {', '.join(names)}{more} of train.jsonl"


def _first_words(dataset: PackedDataset, number: int, vocabulary: Vocabulary) -> str:
    begin, end = dataset.split.offsets[number : number + 2]
    ids = dataset.split.ids[begin : min(end, begin + _WORDS)]
    text = b"".join(vocabulary.tokens[i] for i in ids if vocabulary.kinds[i] in TEXT_KINDS)
    return " ".join(text.decode(errors="replace").split())[:_WORDS]
