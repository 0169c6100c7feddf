"""What teachers predict: the likeliest tokens in the place of each token, of one teacher or of several together."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from chatmill.encoded.token_files import EncodedSplit

_BLOCK = 1 << 16  # tokens, at least, that are predicted at once


class Predictions(NamedTuple):
    """The K likeliest tokens in the place of each of N tokens; or of those of a batch, in arrays (B, T, K)."""

    tokens: NDArray[np.integer[Any]]  # (N, K)
    chances: NDArray[np.floating[Any]]  # (N, K), whose sum is at most 1


class Teacher(Protocol):
    """What predicts the tokens of a split."""

    def predict(self, conversations: slice, num_kept: int) -> Predictions:
        """The likeliest tokens in the place of each token of some conversations."""


def conversation_blocks(split: EncodedSplit) -> list[slice]:
    """All conversations, in blocks that follow each other."""
    borders = [0]
    while (first := borders[-1]) < len(split.offsets) - 1:
        borders.append(max(first + 1, int(split.offsets.searchsorted(split.offsets[first] + _BLOCK))))
    return [slice(first, min(last, len(split.offsets) - 1)) for first, last in pairwise(borders)]


def predict_all(teachers: Sequence[tuple[Teacher, float]], split: EncodedSplit, num_kept: int) -> Iterator[Predictions]:
    """Yield what teachers predict for all tokens, in blocks; that of several is the mean by the weight of each."""
    total = sum(weight for _, weight in teachers)
    for block in conversation_blocks(split):
        parts = [teacher.predict(block, num_kept) for teacher, _ in teachers]
        if len(parts) == 1:
            yield parts[0]
            continue
        tokens = np.concatenate([part.tokens for part in parts], axis=1)
        chances = [part.chances * (weight / total) for part, (_, weight) in zip(parts, teachers, strict=True)]
        yield keep_likeliest(tokens, np.concatenate(chances, axis=1), num_kept)


def keep_likeliest(tokens: NDArray[np.integer[Any]], chances: NDArray[np.floating[Any]], num_kept: int) -> Predictions:
    """The likeliest tokens of each row, the likeliest first; chances of a token that is there twice are added up."""
    by_token = np.argsort(tokens, axis=1, kind="stable")
    sorted_tokens, sorted_chances = (np.take_along_axis(array, by_token, 1) for array in (tokens, chances))
    sums, is_last = sorted_chances.cumsum(axis=1), np.ones(tokens.shape, bool)
    is_last[:, :-1] = sorted_tokens[:, 1:] != sorted_tokens[:, :-1]
    before = np.zeros_like(sums)
    before[:, 1:] = np.maximum.accumulate(np.where(is_last, sums, 0), axis=1)[:, :-1]
    of_token = np.where(is_last, sums - before, 0)
    likeliest = np.argsort(-of_token, axis=1, kind="stable")[:, :num_kept]
    kept, kept_chances = (np.take_along_axis(array, likeliest, 1) for array in (sorted_tokens, of_token))
    return Predictions(np.maximum(kept, 0), kept_chances)
