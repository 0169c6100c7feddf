"""Finds the near-duplicates among records on disk and marks them in the file of their states.

Keys are sorted in shards by hash, and the pairs that they give in blocks by record, so that memory does not grow with
the data.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from chatmill.datasets.near_duplicates.candidates import (
    IS_PART,
    IS_WHOLE,
    KEY_DTYPE,
    WITHIN,
    Pairs,
    RecordTable,
    candidate_pairs,
    unique_pairs,
)
from chatmill.datasets.near_duplicates.comparison import ComparedText, Relation, relation
from chatmill.datasets.near_duplicates.fingerprints import fingerprints
from chatmill.datasets.split import NEAR_DUPLICATE, NEAR_LEAKED, TRAIN
from chatmill.pipeline.progress import progress

BLOCK_RECORDS = 1 << 16
CACHED = 256  # texts in memory
BATCH_CHARACTERS = 1_000_000  # of text that is hashed at a time
_PAIR_DTYPE = np.dtype([("low", "<i8"), ("high", "<i8"), ("relation", "u1")])


class KeyBatches:
    """Collects the keys of texts, computed for many texts at a time."""

    def __init__(self) -> None:
        self._keys = [np.empty(0, KEY_DTYPE)]
        self._texts: list[str] = []
        self._records: list[int] = []  # with the flag WITHIN
        self._characters = 0

    def add(self, text: str, record: int, *, within: bool) -> None:
        """Add a text; with `within` it is also compared with its own source."""
        self._texts.append(text)
        self._records.append(record | int(WITHIN) * within)
        self._characters += len(text)
        if self._characters > BATCH_CHARACTERS:
            self._hash()

    def keys(self) -> NDArray[np.void]:
        """The keys of all texts."""
        self._hash()
        return np.concatenate(self._keys)

    def _hash(self) -> None:
        found = fingerprints(self._texts)
        keys = np.empty(len(found.hashes), KEY_DTYPE)
        keys["hash"] = found.hashes
        keys["record"] = np.array(self._records, np.uint64)[found.owners]
        keys["record"] |= found.is_part * IS_PART | found.is_whole * IS_WHOLE
        self._keys.append(keys)
        self._texts, self._records, self._characters = [], [], 0


class RecordFiles(NamedTuple):
    """The prepared files, one after the other, and a folder with `states`, `sizes` and `positions` of their records."""

    files: list[Path]
    folder: Path

    def records(self) -> RecordTable:
        """What is known about the records, mapped from the files."""
        states = np.memmap(self.folder / "states", np.uint8, "r")
        sizes = np.memmap(self.folder / "sizes", np.uint32, "r")
        return RecordTable(states, sizes, np.searchsorted(self.positions(), self.starts()))

    def positions(self) -> NDArray[np.uint64]:
        """The byte at which each record begins, and in the end that after the last one."""
        return np.memmap(self.folder / "positions", np.uint64, "r")

    def starts(self) -> list[int]:
        """The byte at which each file begins."""
        return list(accumulate((file.stat().st_size for file in self.files[:-1]), initial=0))

    @contextmanager
    def reader(self) -> Iterator[Callable[[int], ComparedText]]:
        """A function that returns the text of a record."""
        positions, starts = self.positions(), self.starts()
        with ExitStack() as opened:
            streams = [opened.enter_context(file.open("rb")) for file in self.files]

            def compared(record: int) -> ComparedText:
                position = int(positions[record])
                size = int(positions[record + 1]) - position
                number = bisect_right(starts, position) - 1
                streams[number].seek(position - starts[number])
                return ComparedText(from_json(streams[number].read(size))["text"])

            yield lru_cache(CACHED)(compared)


def mark_near_duplicates(shards: list[Path], records: RecordFiles, parallel_map: Callable[..., Iterable[Any]]) -> None:
    """Set the states of near-duplicates, given shards of keys."""
    pairs = parallel_map(partial(_pairs, records=records), shards)
    blocks = _write_pairs(progress(pairs, "near-duplicates", total=len(shards)), records.folder)
    verified = parallel_map(partial(_verify, records=records), blocks)
    _mark(list(progress(verified, "comparison", total=len(blocks))), records.folder / "states")


def _write_pairs(found: Iterable[Pairs], folder: Path) -> list[Path]:
    """Write pairs to a file for each block of greater records, and return the files in the order of the blocks."""
    blocks: dict[int, Path] = {}
    for pairs in found:
        numbers = pairs[:, 1] // BLOCK_RECORDS
        for number in np.unique(numbers).tolist():
            file = blocks.setdefault(number, folder / f"pairs-{number}")
            with file.open("ab") as out:
                out.write(pairs[numbers == number].tobytes())
    return [blocks[number] for number in sorted(blocks)]


def _pairs(shard: Path, *, records: RecordFiles) -> Pairs:
    return candidate_pairs(np.fromfile(shard, KEY_DTYPE), records.records())


def _verify(file: Path, *, records: RecordFiles) -> Path:
    """Write those pairs of a file whose texts say the same, with their relation; return the new file."""
    pairs = unique_pairs(np.fromfile(file, np.int64).reshape(-1, 2))
    with records.reader() as text:
        found = [(low, high, how) for low, high in pairs.tolist() if (how := relation(text(low), text(high)))]
    out = file.with_name(f"verified-{file.name}")
    np.array(found, _PAIR_DTYPE).tofile(out)
    return out


def _mark(files: list[Path], states: Path) -> None:
    """Set the states of the records in train that are near-duplicates, given files of verified pairs in order.

    Dropped are those that nearly equal, contain or are part of a held-out record; then those that are part of another
    one in train; then those that nearly equal an earlier one which remains.
    """
    state = np.memmap(states, np.uint8, "r+")
    for low, high, _ in _loaded(files):
        for one, other in ((low, high), (high, low)):
            leaked = (state[one] == TRAIN) & (state[other] < TRAIN)
            state[one[leaked]] = NEAR_LEAKED
    for low, high, how in _loaded(files):
        for part, whole, name in ((low, high, Relation.PART), (high, low, Relation.WHOLE)):
            dropped = (how == name) & (state[part] == TRAIN) & np.isin(state[whole], (TRAIN, NEAR_DUPLICATE))
            state[part[dropped]] = NEAR_DUPLICATE
    for low, high, how in _loaded(files):
        for one, other in np.stack([low, high], axis=1)[how == Relation.SAME].tolist():
            if state[one] == state[other] == TRAIN:
                state[other] = NEAR_DUPLICATE


def _loaded(files: list[Path]) -> Iterator[tuple[Any, Any, Any]]:
    for file in files:
        pairs = np.fromfile(file, _PAIR_DTYPE)
        yield pairs["low"], pairs["high"], pairs["relation"]
