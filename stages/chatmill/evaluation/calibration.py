"""Calibration: whether a model's predictions come true as often as it says (Guo et al. 2017, arXiv:1706.04599)."""

from typing import Any

import numpy as np

from chatmill.evaluation.bits_per_byte import LOGIT_ROWS
from chatmill.evaluation.corpus import Corpus
from chatmill.evaluation.intervals import pooled_share
from chatmill.evaluation.scoring import ScoringEngine
from chatmill.pipeline.progress import progress

NUM_BINS = 10  # of equal width, by the chance of the likeliest token
MAX_DOCUMENTS = 300  # evenly spread over the test set


def calibration(engine: ScoringEngine, context: int, corpus: Corpus) -> dict[str, Any]:
    """How often the likeliest token is `right`, by the `chance` that the model gives it, in trained text.

    Keys of both are the lower ends of the bins. `error` is the mean distance between the two, weighted by the tokens of
    each bin (the expected calibration error). Empty without such text. Of longer conversations the first `context`
    tokens count.
    """
    chances: list[np.ndarray] = []
    hits: list[np.ndarray] = []
    chosen = corpus.by_document(corpus.is_scored & corpus.is_trained)
    documents = [pair for pair in zip(corpus.documents(), chosen, strict=True) if pair[1][:context].any()]
    every = max(1, -(-len(documents) // MAX_DOCUMENTS))
    for ids, is_chosen in progress(documents[::every], "calibration", unit="text"):
        places = np.flatnonzero(is_chosen[:context])
        logits = engine.sequence_logits(ids[: places[-1]].tolist())
        chance, token = likeliest(logits[places - 1])
        chances.append(chance)
        hits.append(token == ids[places])
    if not chances:
        return {}
    numbers = [np.minimum((chance * NUM_BINS).astype(int), NUM_BINS - 1) for chance in chances]
    pooled, together = np.concatenate(chances), np.concatenate(numbers)
    result: dict[str, Any] = {"error": 0.0, "chance": {}, "right": {}}
    for number in np.unique(together):
        name, mean = f"{number / NUM_BINS:.1f}", float(pooled[together == number].mean())
        right = pooled_share([of[bins == number] for of, bins in zip(hits, numbers, strict=True)])
        assert right.value is not None, "a bin has a token at least"
        result["chance"][name], result["right"][name] = mean, right
        result["error"] += abs(mean - right.value) * right.n / len(pooled)
    return result


def likeliest(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N, V) logits -> two (N,): the chance of the likeliest token of each, and its id."""
    tokens = logits.argmax(axis=1)
    chances = np.empty(len(logits))
    for start in range(0, len(logits), LOGIT_ROWS):
        rows = logits[start : start + LOGIT_ROWS].astype(np.float64)
        chances[start : start + LOGIT_ROWS] = 1 / np.exp(rows - rows.max(axis=1, keepdims=True)).sum(axis=1)
    return chances, tokens
