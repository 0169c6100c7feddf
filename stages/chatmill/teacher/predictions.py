"""What teachers predict: the likeliest tokens in the place of each token, of one teacher or of several together."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chatmill.encoded.token_files import EncodedSplit, Meta
from chatmill.pipeline.manifest import MANIFEST_NAME, check_manifest, write_manifest

_BLOCK = 1 << 16  # tokens, at least, that are predicted at once


class Predictions(NamedTuple):
    """The K likeliest tokens in the place of each of N tokens; or of those of a batch, in arrays (B, T, K)."""

    tokens: NDArray[np.integer[Any]]  # (N, K)
    chances: NDArray[np.floating[Any]]  # (N, K), whose sum is at most 1


Predict = Callable[[slice, int], Predictions]
"""The likeliest tokens in the place of each token of some conversations, so many for each."""


def conversation_blocks(split: EncodedSplit) -> list[slice]:
    """All conversations, in blocks that follow each other."""
    borders = [0]
    while (first := borders[-1]) < len(split.offsets) - 1:
        borders.append(max(first + 1, int(split.offsets.searchsorted(split.offsets[first] + _BLOCK))))
    return [slice(first, min(last, len(split.offsets) - 1)) for first, last in pairwise(borders)]


def predict_all(teachers: Sequence[tuple[Predict, float]], split: EncodedSplit, num_kept: int) -> Iterator[Predictions]:
    """Yield what teachers predict for all tokens, in blocks; that of several is the mean by the weight of each."""
    total = sum(weight for _, weight in teachers)
    for block in conversation_blocks(split):
        parts = [predict(block, num_kept) for predict, _ in teachers]
        if len(parts) == 1:
            yield parts[0]
            continue
        tokens = np.concatenate([part.tokens for part in parts], axis=1)
        chances = [part.chances * (weight / total) for part, (_, weight) in zip(parts, teachers, strict=True)]
        yield keep_likeliest(tokens, np.concatenate(chances, axis=1), num_kept)


def keep_likeliest(tokens: NDArray[np.integer[Any]], chances: NDArray[np.floating[Any]], num_kept: int) -> Predictions:
    """The likeliest tokens of each row, the likeliest first; chances of a token that is there twice are added up.

    A row of fewer tokens ends with any, by chance 0; negative ids, which fill up rows, become 0.
    """
    by_token = np.argsort(tokens, axis=1, kind="stable")
    sorted_tokens, sorted_chances = (np.take_along_axis(array, by_token, 1) for array in (tokens, chances))
    sums, is_last = sorted_chances.cumsum(axis=1), np.ones(tokens.shape, bool)
    is_last[:, :-1] = sorted_tokens[:, 1:] != sorted_tokens[:, :-1]
    before = np.zeros_like(sums)  # the sum up to the end of the token before: sums never fall
    before[:, 1:] = np.maximum.accumulate(np.where(is_last, sums, 0), axis=1)[:, :-1]
    of_token = np.where(is_last, sums - before, 0)
    likeliest = np.argsort(-of_token, axis=1, kind="stable")[:, :num_kept]
    kept, kept_chances = (np.take_along_axis(array, likeliest, 1) for array in (sorted_tokens, of_token))
    return Predictions(np.maximum(kept, 0), kept_chances)


# Predictions of a teacher on disk: what `score_teacher` writes and `train_model` reads.

BYTES = 20  # of a prediction, at most
FORMATS_NAME = "formats.json"
TOKENS_NAME, CHANCES_NAME = "train_tokens.npy", "train_chances.npy"
_CHANCE = np.dtype(np.float16)


def num_kept(split: EncodedSplit) -> int:
    """K, the number of tokens that a prediction has on disk."""
    return BYTES // (split.ids.dtype.itemsize + _CHANCE.itemsize)


def write_predictions(folder: Path, split: EncodedSplit, blocks: Iterable[Predictions]) -> None:
    """Write the predictions of all tokens of a split, given in blocks."""
    shape = len(split.ids), num_kept(split)
    tokens, chances = (
        np.lib.format.open_memmap(folder / name, "w+", dtype, shape)
        for name, dtype in ((TOKENS_NAME, split.ids.dtype), (CHANCES_NAME, _CHANCE))
    )
    start = 0
    for block in blocks:
        rows = slice(start, start := start + len(block.tokens))
        tokens[rows], chances[rows] = block
    for array in (tokens, chances):
        array.flush()


def complete(folder: Path, formats: dict[str, Any], meta: Meta) -> None:
    """Write formats.json, how the predictions were made or why there are none, and the manifest."""
    (folder / FORMATS_NAME).write_text(json.dumps(formats, indent=1) + "\n", encoding="utf-8")
    write_manifest(folder, kind="teacher", fingerprint=meta.fingerprint)


def read_predictions(folder: Path, meta: Meta) -> tuple[Predictions | None, dict[str, Any]]:
    """The predictions for the tokens of train, mapped from disk, if there are any; and what formats.json says.

    Raises ValueError where they are of other tokens.
    """
    fingerprint = check_manifest(folder)
    if fingerprint is None:
        raise ValueError(f"{folder}: no {MANIFEST_NAME}: not written by score_teacher: run that stage anew")
    formats = json.loads((folder / FORMATS_NAME).read_text(encoding="utf-8"))
    if not (folder / TOKENS_NAME).exists():
        return None, formats
    found = Predictions(*(np.load(folder / name, mmap_mode="r") for name in (TOKENS_NAME, CHANCES_NAME)))
    if fingerprint != meta.fingerprint or len(found.tokens) != meta.tokens["train"]:
        raise ValueError(f"{folder} has predictions for other tokens: run the stage score_teacher anew")
    return found, formats
