"""The part of the validation set on which a run is measured: of all sources together, or weighted as training ends."""

from collections.abc import Sequence
from itertools import islice

import numpy as np

from chatmill.training.distributed import Group
from chatmill.training.packing import Batch, PackedDataset
from chatmill.training.trainer import Trainer

TOKENS = 16384  # per validation

WeightedBatches = Sequence[tuple[float, list[Batch]]]  # of each source, with the weight of its loss


def pooled_batches(dataset: PackedDataset, rows_per_batch: int, group: Group) -> list[Batch]:
    """The batches of all sources together, as often as each is in the validation set."""
    return _batches(dataset, TOKENS, rows_per_batch, group)


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
    rows = islice(dataset.epoch(0, 0), max(1, -(-int(tokens) // dataset.row_length)))
    return dataset.batches(rows, rows_per_batch, group.rank, group.size)
