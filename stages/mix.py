"""Remove duplicates across the sources and split by group."""

import hashlib
import json
import multiprocessing
import os
import re
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic_core import from_json

from chatmill.datasets.split import SplitName, assign_split, fixed_side, is_by_column, is_generated, question_of
from chatmill.pipeline.manifest import MAX_BYTES, check_file, read_json, write_file_manifest
from chatmill.pipeline.processes import die_with_parent, scripts_on_path
from chatmill.pipeline.progress import progress
from chatmill.pipeline.signatures import Output, Section
from chatmill.pipeline.stage import stage

PositiveFraction = Annotated[float, Field(gt=0, lt=1)]

# The state of a record, one byte each in the file of states. Of equal records, the one with the least state remains.
SPLITS: tuple[SplitName, ...] = ("test", "validation", "train")
TRAIN, DUPLICATE, LEAKED = 2, 3, 4

CHUNK_BYTES = 16_000_000  # of a prepared file that a process reads at a time
SHARD_BYTES = 8_000_000  # of keys that are sorted in memory at a time
MAX_SHARDS = 256
HASHED = 4  # added to the split in a key where it follows from the hash of the question
BY_COLUMN = 8  # the same for one that follows from a column of groups
KEY_DTYPE = np.dtype([("high", "<u8"), ("low", "<u8"), ("record", "<u8"), ("split", "u1")])

BANDS, ROWS_PER_BAND, SHINGLE_WORDS = 14, 8, 3
_COEFFICIENTS = np.frombuffer(hashlib.shake_128(b"minhash").digest(BANDS * ROWS_PER_BAND * 8), "<u4").astype(np.uint64)
_PRIME = np.uint64((1 << 31) - 1)
_CONTROL = re.compile(r"<\|im_start\|>\w+\n|<\|\w+\|>")
_WORD = re.compile(r"\w+")


class FileRange(NamedTuple):
    """The lines of a prepared file that start in [start, end)."""

    file: Path
    start: int
    end: int

    def lines(self) -> Iterator[bytes]:
        """The lines, each complete."""
        with self.file.open("rb") as stream:
            stream.seek(max(self.start - 1, 0))
            position = self.start - 1 + len(stream.readline()) if self.start else 0
            while position < self.end and (line := stream.readline()):
                position += len(line)
                yield line


class Digests(NamedTuple):
    """The n records of a file range: their splits, sizes in bytes of text, and keys, which equal records share."""

    splits: NDArray[np.uint8]  # (n,)
    sizes: NDArray[np.uint32]  # (n,)
    exact: NDArray[np.void]  # (n,)
    question: NDArray[np.void]  # (n,)
    near: NDArray[np.void]  # (0,), or up to (n * BANDS,)


def digest(part: FileRange, *, split_of: Callable[[str], SplitName], near_duplicates: bool) -> Digests:
    """The digests of a file range, with records numbered from 0. Raises ValueError for a line that is not a record."""
    splits, hashed = bytearray(), bytearray()
    sizes: list[int] = []
    exact: list[bytes] = []
    questions: list[bytes] = []
    near: list[bytes] = []
    owners: list[int] = []
    for number, line in enumerate(part.lines()):
        try:
            record = from_json(line)
            text, group = record["text"].encode(), record["group"]
            splits.append(SPLITS.index(split_of(group)))
            questions.append(_hash(question_of(group, record["text"]).encode()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{part.file}: not a record of a conversation: {line[:60]!r}: run prepare again"
            ) from error
        hashed.append(0 if fixed_side(group) or is_generated(group) else BY_COLUMN if is_by_column(group) else HASHED)
        sizes.append(len(text))
        exact.append(_hash(text))
        if near_duplicates:
            near += minhash_keys(record["text"])
            owners += [number] * (len(near) - len(owners))
    split_array, records = np.frombuffer(splits, np.uint8), np.arange(len(splits))
    order = split_array + np.frombuffer(hashed, np.uint8)
    return Digests(
        split_array,
        np.array(sizes, np.uint32),
        _keys(exact, records, order),
        _keys(questions, records, order),
        _keys(near, np.array(owners, np.int64), split_array),
    )


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:16]


def _keys(hashes: list[bytes], owners: NDArray[np.int64], splits: NDArray[np.uint8]) -> NDArray[np.void]:
    keys = np.empty(len(hashes), KEY_DTYPE)
    keys["high"], keys["low"] = np.frombuffer(b"".join(hashes), "<u8").reshape(-1, 2).T
    keys["record"], keys["split"] = owners, splits[owners]
    return keys


def minhash_keys(text: str) -> list[bytes]:
    """Keys of which nearly equal texts share at least one; none for a text without words.

    MinHash over shingles of SHINGLE_WORDS lower-case words (Broder 1997), in bands (Leskovec et al., Mining of Massive
    Datasets, section 3.4): texts of Jaccard similarity s share a key with probability 1 - (1 - s^ROWS_PER_BAND)^BANDS.
    """
    words = _WORD.findall(_CONTROL.sub(" ", text).lower())
    if not words:
        return []
    shingles = {" ".join(words[i : i + SHINGLE_WORDS]) for i in range(max(1, len(words) - SHINGLE_WORDS + 1))}
    values = np.array([zlib.crc32(shingle.encode()) for shingle in shingles], np.uint64)
    multiply, add = _COEFFICIENTS.reshape(2, -1, 1)
    minima = np.full(BANDS * ROWS_PER_BAND, _PRIME)
    for start in range(0, len(values), 4096):
        hashed = ((multiply | 1) * values[start : start + 4096] + add) % _PRIME
        minima = np.minimum(minima, hashed.min(axis=1))
    return [_hash(bytes([band]) + rows.tobytes()) for band, rows in enumerate(minima.reshape(BANDS, ROWS_PER_BAND))]


def mark_duplicates(shard: Path, *, states: Path, kind: str) -> None:
    """Set the state of each record in a shard of keys that duplicates another one.

    Of equal texts the first one in test remains, or else in validation, or else in train, but one whose side is fixed
    or that was generated before all others. Of equal questions, those whose side follows from the question are dropped
    if such a conversation is on another side. Of nearly equal texts, those in train are dropped if another one is held
    out.
    """
    keys = np.fromfile(shard, KEY_DTYPE)
    keys = keys[np.lexsort((keys["record"], keys["split"], keys["low"], keys["high"]))]
    first = np.ones(len(keys), bool)
    first[1:] = (keys["high"][1:] != keys["high"][:-1]) | (keys["low"][1:] != keys["low"][:-1])
    split, is_hashed = keys["split"] % HASHED, keys["split"] // HASHED == 1
    kept_split = split[first][np.cumsum(first) - 1]
    state = np.memmap(states, np.uint8, "r+")
    if kind == "exact":
        state[keys["record"][~first]] = DUPLICATE
    leaked = (split == TRAIN) & (kept_split != TRAIN)
    if kind == "question":
        leaked = is_hashed & (split != kept_split) | leaked & (keys["split"] >= BY_COLUMN)
    records = keys["record"][leaked]
    state[records if kind == "exact" else records[state[records] < DUPLICATE]] = LEAKED


@contextmanager
def process_pool(count: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """A `map` over this number of processes that preserves the order of results."""
    if count < 2:
        yield map
        return
    with scripts_on_path(), multiprocessing.get_context("spawn").Pool(count, die_with_parent) as pool:
        yield pool.imap


def find_duplicates(
    chunks: list[FileRange], folder: Path, split_of: Callable[[str], SplitName], near_duplicates: bool
) -> None:
    """Write two files about the records: `states` (uint8) and `sizes` (uint32, bytes of text)."""
    total = sum(chunk.end - chunk.start for chunk in chunks)
    kinds = (("exact", 1), ("question", 1), ("near", BANDS))
    shards = {kind: _shards(folder, kind, times * total) for kind, times in kinds}
    with process_pool(min(os.cpu_count() or 1, len(chunks) // 4)) as parallel_map:
        count = 0
        read = partial(digest, split_of=split_of, near_duplicates=near_duplicates)
        for digests in progress(parallel_map(read, chunks), "digests", total=len(chunks)):
            _append(folder / "states", digests.splits)
            _append(folder / "sizes", digests.sizes)
            for kind in shards:
                keys = getattr(digests, kind)
                keys["record"] += count
                for number, shard in enumerate(shards[kind]):
                    _append(shard, keys[keys["high"] % len(shards[kind]) == number])
            count += len(digests.splits)
        for kind in shards if count else ():
            marked = parallel_map(partial(mark_duplicates, states=folder / "states", kind=kind), shards[kind])
            for _ in progress(marked, f"{kind} duplicates", total=len(shards[kind])):
                pass


def _shards(folder: Path, kind: str, size: int) -> list[Path]:
    """Files of about SHARD_BYTES for the keys of `size` bytes of records; a key has at most a sixth of its record's."""
    return [folder / f"{kind}-{number}" for number in range(min(MAX_SHARDS, 1 + size // (6 * SHARD_BYTES)))]


def _append(file: Path, array: NDArray[Any]) -> None:
    with file.open("ab") as out:
        out.write(array.tobytes())


def write_splits(files: list[Path], folder: Path, outputs: list[Path]) -> None:
    """Copy each record to the output of its split."""
    with ExitStack() as opened:
        states = _bytes(opened.enter_context((folder / "states").open("rb")))
        writes = [opened.enter_context(output.open("wb")).write for output in outputs]
        for file in files:
            with file.open("rb") as lines:
                for line, state in zip(lines, states, strict=False):
                    if state < len(writes):
                        writes[state](line)


def _bytes(stream: BinaryIO) -> Iterator[int]:
    return (value for block in iter(partial(stream.read, 1 << 16), b"") for value in block)


def count_states(folder: Path) -> tuple[list[int], list[int]]:
    """The number of records in each state, and their bytes of text."""
    counts, sizes = np.zeros(LEAKED + 1, np.int64), np.zeros(LEAKED + 1, np.int64)
    with (folder / "states").open("rb") as states, (folder / "sizes").open("rb") as bytes_of_text:
        while block := states.read(1 << 20):
            state = np.frombuffer(block, np.uint8)
            counts += np.bincount(state, minlength=LEAKED + 1)
            size = np.frombuffer(bytes_of_text.read(4 << 20), np.uint32)
            sizes += np.bincount(state, size, minlength=LEAKED + 1).astype(np.int64)
    return counts.tolist(), sizes.tolist()


def prepared_files(folder: Path, sources: list[str]) -> list[Path]:
    """The prepared file of each source. Raises ValueError if one is missing or changed, or if there are others."""
    expected = {f"{source}{end}" for source in sources for end in (".jsonl", ".rejects.jsonl")}
    for file in sorted(folder.glob("*.jsonl")):
        if file.name not in expected:
            raise ValueError(
                f"{file}: params.yaml has no section prepare.{file.name.partition('.')[0]}: delete the file"
            )
    files = [folder / f"{source}.jsonl" for source in sources]
    for file in files:
        if not file.exists():
            raise ValueError(f"{file} is missing: run dvc repro prepare@{file.stem}")
        for written in (file, file.with_suffix(".rejects.jsonl")):
            check_file(written, file.with_suffix(".manifest.json"))
    return files


def count_rejects(folder: Path, source: str) -> dict[str, int]:
    """The number of rejected entries of a source, by reason; parts of entries are not counted."""
    with (folder / f"{source}.rejects.jsonl").open(encoding="utf-8") as lines:
        rejects = map(json.loads, lines)
        return dict(sorted(Counter(reject["reason"] for reject in rejects if not reject.get("part")).items()))


def read_counts(folder: Path, source: str) -> dict[str, Any] | None:
    """What prepare counted of a source; None for one that an earlier version prepared."""
    manifest = folder / f"{source}.manifest.json"
    return read_json(manifest, MAX_BYTES).get("counts") if manifest.exists() else None


@stage
def main(
    prepared: Path,
    train: Output,
    validation: Output,
    test: Output,
    manifest: Output,
    metrics: Output,
    *,
    prepare: Section,
    validation_share: PositiveFraction,
    test_share: PositiveFraction,
    near_duplicates: bool,
) -> None:
    """Write the conversations of each split, and the number of dropped ones by reason.

    The sources are read in the order of their names. `leaked` counts conversations that were dropped because a copy, or
    the same question, is on another side, and `duplicates` all other copies. Raises ValueError if a split is empty.
    """
    if validation_share + test_share >= 1:
        total = validation_share + test_share
        raise ValueError(f"params.yaml: mix.validation_share + mix.test_share: expected less than 1, got {total:g}")
    sources = sorted(prepare)
    files = prepared_files(prepared, sources)
    split_of = partial(assign_split, validation_share=validation_share, test_share=test_share)
    chunks = [
        FileRange(file, start, min(start + CHUNK_BYTES, file.stat().st_size))
        for file in files
        for start in range(0, file.stat().st_size, CHUNK_BYTES)
    ]
    with tempfile.TemporaryDirectory(dir=train.parent) as scratch:
        folder = Path(scratch)
        find_duplicates(chunks, folder, split_of, near_duplicates)
        counts, sizes = count_states(folder)
        for name, count in zip(SPLITS, counts, strict=False):
            if not count:
                raise ValueError(
                    f"no conversations remain for {name}: add data, or change mix.validation_share and mix.test_share"
                )
        write_splits(files, folder, [test, validation, train])
    write_file_manifest(manifest, [train, validation, test], kind="conversations")
    content = {
        "conversations": dict(zip(SPLITS, counts, strict=False)),
        "bytes": dict(zip(SPLITS, sizes, strict=False)),
        "rejected": {source: reasons for source in sources if (reasons := count_rejects(prepared, source))},
        "read": {source: found for source in sources if (found := read_counts(prepared, source))},
        "duplicates": counts[DUPLICATE],
        "leaked": counts[LEAKED],
    }
    metrics.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
