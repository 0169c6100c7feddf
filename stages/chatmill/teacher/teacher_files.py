"""Predictions of a teacher on disk: what `score_teacher` writes and `train_model` reads.

A folder with formats.json, which says how they were made or why there are none, and, if there are,

    train_tokens.npy   (N, K) uint16 or uint32   the likeliest tokens in the place of each of the N tokens of train
    train_chances.npy  (N, K) float16            their probabilities; the rest is the teacher's for all other tokens

There are none for validation and test.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from chatmill.encoded.token_files import EncodedSplit, Meta
from chatmill.pipeline.manifest import MANIFEST_NAME, check_manifest, write_manifest
from chatmill.teacher.predictions import Predictions

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


def write_formats(folder: Path, content: dict[str, Any]) -> None:
    """Write formats.json: how the predictions were made, or why there are none."""
    (folder / FORMATS_NAME).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def complete(folder: Path, meta: Meta) -> None:
    """Write the manifest, which completes the folder."""
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
