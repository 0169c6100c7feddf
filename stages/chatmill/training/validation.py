"""The part of the validation set on which a run is measured: of all sources together, or weighted as training ends."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from chatmill.training.chains import Row
from chatmill.training.distributed import Group
from chatmill.training.packing import Batch, PackedDataset
from chatmill.training.trainer import Trainer

TOKENS = 16384  # per validation


class Validation(NamedTuple):
    """The batches on which a run is measured, and the sources of their conversations, if there are several."""

    batches: list[Batch]
    sources: dict[int, str]  # by their numbers in the batches


WeightedBatches = Sequence[tuple[float, list[Batch]]]  # of each source, with the weight of its loss


def pooled_validation(dataset: PackedDataset, rows_per_batch: int, group: Group) -> Validation:
    """The batches of all sources together, as often as each is in the validation set."""
    found = np.zeros(0, np.int64)
    for row in _rows(dataset, TOKENS):
        found = np.union1d(found, dataset.sources_of(dataset.spans.starts[row.conversations]))
    sources = {number: dataset.source_names[number] for number in found.tolist()}
    return Validation(_batches(dataset, TOKENS, rows_per_batch, group), sources if len(sources) > 1 else {})


def weighted_batches(
    dataset: PackedDataset, shares: np.ndarray, rows_per_batch: int, group: Group
) -> list[tuple[float, list[Batch]]]:
    """The batches of each source with its share of the loss, `shares` (S,); those without a share are left out.

    Raises ValueError where the validation set has none of these sources.
    """
    found: list[tuple[float, list[Batch]]] = []
    for source in np.flatnonzero(shares * dataset.source_tokens()):
        batches = _batches(dataset.of_source(int(source)), TOKENS * shares[source], rows_per_batch, group)
        found.append((float(shares[source]), batches))
    if not found:
        names = ", ".join(name for name, share in zip(dataset.source_names, shares, strict=True) if share)
        raise ValueError(f"train_model.keep = best: the validation set has no conversations of {names}: set keep: last")
    return found


def weighted_bits_per_byte(trainer: Trainer, batches: WeightedBatches) -> float | None:
    """The mean of the sources' bits per byte by their weights; None where none has trained text."""
    measured = [(share, trainer.evaluate(of_source).bits_per_byte) for share, of_source in batches]
    known = [(share, bits) for share, bits in measured if bits is not None]
    return sum(share * bits for share, bits in known) / sum(share for share, _ in known) if known else None


def _batches(dataset: PackedDataset, tokens: float, rows_per_batch: int, group: Group) -> list[Batch]:
    return dataset.batches(_rows(dataset, tokens), rows_per_batch, group.rank, group.size)


def _rows(dataset: PackedDataset, tokens: float) -> Iterator[Row]:
    return islice(dataset.epoch(0, 0), max(1, -(-int(tokens) // dataset.row_length)))
