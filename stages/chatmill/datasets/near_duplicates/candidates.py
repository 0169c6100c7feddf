"""Pairs of records that share a key."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chatmill.datasets.split import DUPLICATE, TRAIN

ALL_PAIRS = 16  # records with a common key that are all compared with each other
NEIGHBOURS, FIRST = (
    2,
    4,
)  # of more, each is compared with these neighbours and first ones of a source
MIN_RATIO, MIN_PART_RATIO = 0.6, 0.15  # of the sizes of a pair, which verification would not accept below

KEY_DTYPE = np.dtype([("hash", "<u8"), ("record", "<u8")])
IS_PART, IS_WHOLE, WITHIN = (np.uint64(1 << bit) for bit in (61, 62, 63))  # flags in the number of a record
_RECORD = np.uint64((1 << 61) - 1)

Pairs = NDArray[np.int64]  # (P, 2), the lesser record first
_Mask = NDArray[np.bool_]


class RecordTable(NamedTuple):
    """What is known about all records. N records, S sources."""

    states: NDArray[np.uint8]  # (N,)
    sizes: NDArray[np.uint32]  # (N,) bytes of text
    first_of_source: NDArray[np.int64]  # (S,)


class _Keys(NamedTuple):
    """K keys, those of a hash beside each other, and of these those of a source, the held-out ones first."""

    hashes: NDArray[np.uint64]  # (K,)
    records: NDArray[np.int64]  # (K,)
    sources: NDArray[np.int64]  # (K,)
    flags: NDArray[np.uint64]  # (K,)


def candidate_pairs(keys: NDArray[np.void], records: RecordTable) -> Pairs:
    """The pairs of records that share a key and may be near-duplicates of which one is in train, each once.

    The result does not depend on the order of the keys.
    """
    sorted_keys = _sorted(keys, records)
    pairs = [_allowed(sorted_keys, i, j, records) for i, j in _index_pairs(sorted_keys)]
    return unique_pairs(np.concatenate([np.empty((0, 2), np.int64), *pairs]))


def unique_pairs(pairs: Pairs) -> Pairs:
    """Each pair once, sorted by the greater record."""
    pairs = pairs[np.lexsort((pairs[:, 0], pairs[:, 1]))]
    is_first = np.ones(len(pairs), np.bool_)
    is_first[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    return pairs[is_first]


def _sorted(keys: NDArray[np.void], records: RecordTable) -> _Keys:
    for _ in range(2):
        keys = keys[_is_shared(keys["hash"])]
        keys = keys[records.states[(keys["record"] & _RECORD).astype(np.int64)] < DUPLICATE]
    numbers = (keys["record"] & _RECORD).astype(np.int64)
    sources = np.searchsorted(records.first_of_source, numbers, "right") - 1
    order = np.lexsort((keys["record"], numbers, records.states[numbers], sources, keys["hash"]))
    return _Keys(keys["hash"][order], numbers[order], sources[order], keys["record"][order])


def _is_shared(hashes: NDArray[np.uint64]) -> _Mask:
    order = np.argsort(hashes)
    equal = hashes[order[1:]] == hashes[order[:-1]]
    shared = np.zeros(len(hashes), np.bool_)
    shared[order[1:][equal]] = shared[order[:-1][equal]] = True
    return shared


def _index_pairs(keys: _Keys) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Indices of keys to compare; with more than ALL_PAIRS of a hash not all pairs."""
    index = np.arange(len(keys.hashes))
    starts, ends = _groups(keys.hashes[1:] != keys.hashes[:-1])
    is_small = ends - starts <= ALL_PAIRS
    pairs = []
    for distance in range(1, ALL_PAIRS):
        chosen = (index + distance < ends) & (is_small | (distance <= NEIGHBOURS))
        pairs.append((index[chosen], index[chosen] + distance))
    large = np.flatnonzero(~is_small)
    _, source_ends = _groups((keys.hashes[1:] != keys.hashes[:-1]) | (keys.sources[1:] != keys.sources[:-1]))
    target = starts[large]  # the first key of each source in turn
    while len(large):
        for distance in range(FIRST):
            chosen = target + distance < source_ends[target]
            pairs.append((large[chosen], target[chosen] + distance))
        target = source_ends[target]
        remain = target < ends[large]
        large, target = large[remain], target[remain]
    return pairs


def _groups(is_other: _Mask) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each key the first index of its group, and the index after its last one."""
    bounds = np.concatenate([[0], np.flatnonzero(is_other) + 1, [len(is_other) + 1]])
    sizes = np.diff(bounds)
    return np.repeat(bounds[:-1], sizes), np.repeat(bounds[1:], sizes)


def _allowed(keys: _Keys, i: NDArray[np.int64], j: NDArray[np.int64], records: RecordTable) -> Pairs:
    one, other = keys.records[i], keys.records[j]
    small, large = records.sizes[one].astype(np.float64), records.sizes[other].astype(np.float64)
    flags_one, flags_other = keys.flags[i], keys.flags[j]
    part = np.where(small <= large, flags_one, flags_other)  # what may be a part of the other
    ratio = np.minimum(small, large) / np.maximum(np.maximum(small, large), 1)
    of_part = (flags_one & IS_PART) != 0
    accepted = np.where(of_part, ((part & IS_WHOLE) != 0) & (ratio >= MIN_PART_RATIO), ratio >= MIN_RATIO)
    accepted &= (keys.sources[i] != keys.sources[j]) | ((flags_one & flags_other & WITHIN) != 0)
    accepted &= (one != other) & ((records.states[one] == TRAIN) | (records.states[other] == TRAIN))
    pairs = np.stack([one, other], axis=1)[accepted]
    return np.sort(pairs, axis=1)
