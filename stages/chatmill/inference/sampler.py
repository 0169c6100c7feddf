"""Which token comes next, from the logits.

Shapes: V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to choose among tokens. The defaults choose the likeliest, always."""

    temperature: float = 0.0  # 0: the likeliest token, whatever follows here
    top_k: int = 0  # only the k likeliest; 0: all
    top_p: float = 1.0  # only the likeliest that together have this probability (arXiv:1904.09751)
    min_p: float = 0.0  # only those at least this likely, relative to the likeliest (arXiv:2407.01082)
    repetition_penalty: float = 1.0  # makes what the reply holds already less likely (arXiv:1909.05858)
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature {self.temperature}: expected 0 or more")
        if self.top_k < 0:
            raise ValueError(f"top_k {self.top_k}: expected 0 (all) or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p {self.top_p}: expected more than 0, at most 1")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p {self.min_p}: expected 0 to 1")
        if not self.repetition_penalty > 0:
            raise ValueError(f"repetition_penalty {self.repetition_penalty}: expected more than 0 (1 is none)")


class Sampler:
    """Picks ids among those allowed; equal logits go to the lower id."""

    def __init__(self, allowed: np.ndarray, sampling: Sampling) -> None:
        """`allowed` (V,) is True for the ids that may be picked."""
        self.sampling = sampling
        self._allowed = allowed
        self._random = np.random.default_rng(sampling.seed)

    def pick(self, logits: np.ndarray, reply: Sequence[int] = ()) -> int:
        """The next id, from logits (V,) and the ids of the reply so far."""
        logits = np.where(self._allowed, logits, -np.inf)
        if self.sampling.repetition_penalty != 1:
            logits = penalise(logits, reply, self.sampling.repetition_penalty)
        if self.sampling.temperature == 0:
            return int(logits.argmax())
        ids, probabilities = self.candidates(logits)
        chosen = np.searchsorted(probabilities.cumsum(), self._random.random() * probabilities.sum(), side="right")
        return int(ids[min(chosen, len(ids) - 1)])

    def candidates(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ids that are left, likeliest first, and their probabilities, which need not add up to 1."""
        ids = np.argsort(-logits, kind="stable")[: self.sampling.top_k or None]
        scaled = logits[ids].astype(np.float64) / self.sampling.temperature
        probabilities = np.exp(scaled - scaled[0])
        probabilities /= probabilities.sum()
        before = probabilities.cumsum() - probabilities
        kept = (before < self.sampling.top_p) & (probabilities >= self.sampling.min_p * probabilities[0])
        kept &= probabilities > 0
        return ids[kept], probabilities[kept]


def penalise(logits: np.ndarray, reply: Sequence[int], penalty: float) -> np.ndarray:
    """Logits in which each id of the reply is less likely: positive ones divided, negative ones multiplied."""
    ids = np.unique(np.asarray(reply, np.int64))
    result = logits.copy()
    result[ids] = np.where(logits[ids] > 0, logits[ids] / penalty, logits[ids] * penalty)
    return result
