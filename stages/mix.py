"""Remove duplicates across the sources and split by group."""

import hashlib
import json
import re
import sys
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic_core import from_json

from chatmill.datasets.near_duplicates.search import KeyBatches, RecordFiles, mark_near_duplicates
from chatmill.datasets.split import (
    DUPLICATE,
    LEAKED,
    NEAR_DUPLICATE,
    NEAR_LEAKED,
    SPLITS,
    STATES,
    TRAIN,
    SplitName,
    assign_split,
    fixed_side,
    is_by_column,
    is_generated,
    question_of,
)
from chatmill.pipeline.manifest import MAX_BYTES, check_file, read_json, write_file_manifest
from chatmill.pipeline.params_file import PositiveInt
from chatmill.pipeline.parts import begin_parts, finish_parts, part_file
from chatmill.pipeline.progress import progress
from chatmill.pipeline.signatures import Output, Section
from chatmill.pipeline.stage import stage
from chatmill.shards.file_ranges import FileRange, shards_of
from chatmill.shards.workers import OrderedMap, worker_pool

NearScope = Literal["across", "within", "off"]  # other sources only, all, or nothing
PositiveFraction = Annotated[float, Field(gt=0, lt=1)]

CHUNK_BYTES = 16_000_000  # of a prepared file that a process reads at a time
SHARD_BYTES = 8_000_000  # of keys that are sorted in memory at a time
MAX_SHARDS = 1024  # of 65,536 at most: their numbers are of 16 bits
SHARDED = {"exact": 1, "question": 1, "near": 6}  # bytes of keys, relative to a sixth of the records'
HASHED = 4  # added to the split in a key where it follows from the hash of the question
BY_COLUMN = 8  # the same for one that follows from a column of groups
KEY_DTYPE = np.dtype([("high", "<u8"), ("low", "<u8"), ("record", "<u8"), ("split", "u1"), ("trained", "<i4")])
ROLE = re.compile(r"<\|im_start\|>(\w+)\n")


class Digests(NamedTuple):
    """The n records of a file range: their splits, sizes in bytes, and keys, which equal records share."""

    splits: NDArray[np.uint8]  # (n,)
    sizes: NDArray[np.uint32]  # (n,) of the texts
    lines: NDArray[np.uint64]  # (n,) sizes of the lines
    exact: NDArray[np.void]  # (n,)
    question: NDArray[np.void]  # (n,)
    near: NDArray[np.void]  # (k,) of other keys, as many as the texts give


def digest(
    part: FileRange, *, split_of: Callable[[str], SplitName], scopes: dict[str, NearScope | None] | None
) -> Digests:
    """The digests of a file range, with records numbered from 0. Raises ValueError for a line that is not a record.

    `scopes` says for each source what its records are compared with for near-duplicates; with None there are none.
    """
    splits, hashed = bytearray(), bytearray()
    sizes: list[int] = []
    lines: list[int] = []
    exact: list[bytes] = []
    trained: list[int] = []
    questions: list[bytes] = []
    near, scope = KeyBatches(), scopes.get(part.file.stem) if scopes is not None else "off"
    for number, line in enumerate(part.lines()):
        try:
            record = from_json(line)
            text, group = record["text"].encode(), record["group"]
            splits.append(SPLITS.index(split_of(group)))
            questions.append(_hash(question_of(group, record["text"]).encode()))
            trained.append(count_trained(record["text"], record.get("train")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{part.file}: not a record of a conversation: {line[:60]!r}: run prepare again"
            ) from error
        hashed.append(0 if fixed_side(group) or is_generated(group) else BY_COLUMN if is_by_column(group) else HASHED)
        sizes.append(len(text))
        lines.append(len(line))
        exact.append(_hash(text))
        if scope != "off":
            within = scope == "within" or (scope is None and not is_generated(group))
            near.add(record["text"], number, within=within)
    split_array, records = np.frombuffer(splits, np.uint8), np.arange(len(splits))
    order = split_array + np.frombuffer(hashed, np.uint8)
    return Digests(
        split_array,
        np.array(sizes, np.uint32),
        np.array(lines, np.uint64),
        _keys(exact, records, order, trained),
        _keys(questions, records, order, trained),
        near.keys(),
    )


def count_trained(text: str, train: list[bool | None] | None) -> int:
    """How many messages more the flags train than the roles do, in which all None stands for; fewer if negative."""
    roles = ROLE.findall(text) if train else []
    return sum(flag - (role == "assistant") for role, flag in zip(roles, train or (), strict=True) if flag is not None)


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:16]


def _keys(
    hashes: list[bytes], owners: NDArray[np.int64], splits: NDArray[np.uint8], trained: list[int]
) -> NDArray[np.void]:
    keys = np.empty(len(hashes), KEY_DTYPE)
    keys["high"], keys["low"] = np.frombuffer(b"".join(hashes), "<u8").reshape(-1, 2).T
    keys["record"], keys["split"], keys["trained"] = owners, splits[owners], trained
    return keys


class Duplicates(NamedTuple):
    """Records that duplicate another one: those on its side, and those on another side."""

    own: NDArray[np.uint64]
    leaked: NDArray[np.uint64]


def duplicates_in(shard: Path, *, kind: str) -> Duplicates:
    """The records in a shard of keys that duplicate another one.

    Of equal texts the first one in test remains, or else in validation, or else in train, but one whose side is fixed
    or that was generated before all others; of several such ones, the first of those with the most trained messages. Of
    equal questions, those whose side follows from the question are dropped if such a conversation is on another side.
    """
    keys = np.fromfile(shard, KEY_DTYPE)
    keys = keys[np.lexsort((keys["record"], -keys["trained"], keys["split"], keys["low"], keys["high"]))]
    first = np.ones(len(keys), bool)
    first[1:] = (keys["high"][1:] != keys["high"][:-1]) | (keys["low"][1:] != keys["low"][:-1])
    split, is_hashed = keys["split"] % HASHED, keys["split"] // HASHED == 1
    kept_split = split[first][np.cumsum(first) - 1]
    leaked = (split == TRAIN) & (kept_split != TRAIN)
    if kind == "question":
        leaked = is_hashed & (split != kept_split) | leaked & (keys["split"] >= BY_COLUMN)
    return Duplicates(keys["record"][~first & (kind == "exact")], keys["record"][leaked])


def find_duplicates(
    chunks: list[FileRange],
    folder: Path,
    split_of: Callable[[str], SplitName],
    scopes: dict[str, NearScope | None] | None,
    parallel_map: OrderedMap,
) -> list[int]:
    """Write files about the records: `states` (uint8), `sizes` (uint32, bytes of text) and `positions` (int64).

    Returns the number of records in each chunk.
    """
    total = sum(chunk.end - chunk.start for chunk in chunks)
    shards = {kind: _shards(folder, kind, times * total) for kind, times in SHARDED.items()}
    counts: list[int] = []
    count = position = 0
    read = partial(digest, split_of=split_of, scopes=scopes)
    for digests in progress(parallel_map(read, chunks), "digests", total=len(chunks)):
        _append(folder / "states", digests.splits)
        _append(folder / "sizes", digests.sizes)
        _append(folder / "positions", position + np.cumsum(digests.lines) - digests.lines)
        position += int(digests.lines.sum())
        for kind in shards:
            keys = getattr(digests, kind)
            keys["record"] += count
            numbers = (keys[keys.dtype.names[0]] % len(shards[kind])).astype(np.uint16)
            order = np.argsort(numbers, kind="stable")
            bounds = np.searchsorted(numbers[order], np.arange(len(shards[kind]) + 1))
            for shard, start, end in zip(shards[kind], bounds, bounds[1:], strict=False):
                if start < end:
                    _append(shard, keys[order[start:end]])
        counts.append(len(digests.splits))
        count += counts[-1]
    _append(folder / "positions", np.array([position], np.uint64))
    for kind in ("exact", "question") if count else ():
        state = np.memmap(folder / "states", np.uint8, "r+")
        found = parallel_map(partial(duplicates_in, kind=kind), shards[kind])
        for duplicates in progress(found, f"{kind} duplicates", total=len(shards[kind])):
            leaked = duplicates.leaked if kind == "exact" else duplicates.leaked[state[duplicates.leaked] < DUPLICATE]
            state[duplicates.own] = DUPLICATE
            state[leaked] = LEAKED
    if count and scopes is not None:
        records = RecordFiles(list(dict.fromkeys(chunk.file for chunk in chunks)), folder)
        mark_near_duplicates(shards["near"], records, parallel_map)
    return counts


def _shards(folder: Path, kind: str, size: int) -> list[Path]:
    """Files of about SHARD_BYTES for the keys of `size` bytes of records; a key has at most a sixth of its record's."""
    files = [folder / f"{kind}-{number}" for number in range(min(MAX_SHARDS, 1 + size // (6 * SHARD_BYTES)))]
    for file in files:
        file.touch()
    return files


def _append(file: Path, array: NDArray[Any]) -> None:
    with file.open("ab") as out:
        out.write(array.tobytes())


class Copy(NamedTuple):
    """A chunk of a prepared file, the number of its first record and of all, and the bytes of each split before it."""

    chunk: FileRange
    first: int
    records: int
    before: list[int]

    def __str__(self) -> str:
        return str(self.chunk)


class Target(NamedTuple):
    """The output of a split, and the bytes of the split at which its parts start."""

    output: Path
    part_starts: list[int]


def plan_copies(
    chunks: list[FileRange], counts: list[int], folder: Path, outputs: list[Path], part_bytes: int
) -> tuple[list[Copy], list[Target]]:
    """Where the records of each chunk go, so that all can be copied at once."""
    copies, targets = [], [Target(output, []) for output in outputs]
    first, before, shares = 0, [0] * len(outputs), [-1] * len(outputs)
    for chunk, count in zip(chunks, counts, strict=True):
        copies.append(Copy(chunk, first, count, [*before]))
        state = np.fromfile(folder / "states", np.uint8, count, offset=first)
        positions = np.fromfile(folder / "positions", np.int64, count + 1, offset=first * np.int64().itemsize)
        lengths = np.diff(positions)
        for split, target in enumerate(targets):
            own = lengths[state == split]
            starts = before[split] + np.cumsum(own) - own
            share = starts // part_bytes
            begins = np.diff(share, prepend=shares[split]) > 0
            target.part_starts.extend(starts[begins].tolist())
            shares[split] = int(share[-1]) if len(share) else shares[split]
            before[split] += int(own.sum())
        first += count
    return copies, targets


def copy_records(copy: Copy, *, states: Path, targets: list[Target]) -> None:
    """Write each record of a chunk to its place in the part of its split."""
    state, lines = np.fromfile(states, np.uint8, copy.records, offset=copy.first), list(copy.chunk.lines())
    for split, (target, start) in enumerate(zip(targets, copy.before, strict=True)):
        place, data = start, memoryview(b"".join(compress(lines, state == split)))
        while data:
            number = bisect_right(target.part_starts, place) - 1
            end = (*target.part_starts, sys.maxsize)[number + 1]
            with part_file(target.output, number, len(target.part_starts)).open("r+b") as part:
                part.seek(place - target.part_starts[number])
                part.write(data[: end - place])
            place, data = place + len(data[: end - place]), data[end - place :]


def write_splits(copies: list[Copy], targets: list[Target], folder: Path, parallel_map: OrderedMap) -> None:
    """Copy each record to the output of its split."""
    for output, starts in targets:
        begin_parts(output, len(starts))
    copied = parallel_map(partial(copy_records, states=folder / "states", targets=targets), copies)
    for _ in progress(copied, "copies", total=len(copies)):
        pass
    for output, starts in targets:
        finish_parts(output, len(starts), parallel_map)


def count_states(folder: Path) -> tuple[list[int], list[int]]:
    """The number of records in each state, and their bytes of text."""
    counts, sizes = np.zeros(STATES, np.int64), np.zeros(STATES, np.int64)
    with (folder / "states").open("rb") as states, (folder / "sizes").open("rb") as bytes_of_text:
        while block := states.read(1 << 20):
            state = np.frombuffer(block, np.uint8)
            counts += np.bincount(state, minlength=STATES)
            size = np.frombuffer(bytes_of_text.read(4 << 20), np.uint32)
            sizes += np.bincount(state, size, minlength=STATES).astype(np.int64)
    return counts.tolist(), sizes.tolist()


def prepared_files(folder: Path, sources: list[str]) -> list[Path]:
    """The prepared file of each source. Raises ValueError if one is missing or changed, or if there are others."""
    expected = {f"{source}{end}" for source in sources for end in (".jsonl", ".rejects.jsonl")}
    for file in sorted(folder.glob("*.jsonl")):
        if file.name not in expected:
            source = file.name.partition(".")[0]
            raise ValueError(f"{file}: params.yaml has no section prepare.{source}: delete {folder}/{source}.*")
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
    part_bytes: PositiveInt,
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
    chunks = [chunk for file in files for chunk in shards_of(file, CHUNK_BYTES)]
    with tempfile.TemporaryDirectory(dir=train.parent) as scratch, worker_pool(len(chunks) // 4) as parallel_map:
        folder = Path(scratch)
        scopes = {name: section.get("near_duplicates") for name, section in prepare.items()}
        in_chunks = find_duplicates(chunks, folder, split_of, scopes if near_duplicates else None, parallel_map)
        counts, sizes = count_states(folder)
        for name, count in zip(SPLITS, counts, strict=False):
            if not count:
                raise ValueError(
                    f"no conversations remain for {name}: add data, or change mix.validation_share and mix.test_share"
                )
        outputs = [test, validation, train]  # in the order of states
        write_splits(*plan_copies(chunks, in_chunks, folder, outputs, part_bytes), folder, parallel_map)
    write_file_manifest(manifest, [train, validation, test], kind="conversations")
    content = {
        "conversations": dict(zip(SPLITS, counts, strict=False)),
        "bytes": dict(zip(SPLITS, sizes, strict=False)),
        "rejected": {source: reasons for source in sources if (reasons := count_rejects(prepared, source))},
        "read": {source: found for source in sources if (found := read_counts(prepared, source))},
        "duplicates": counts[DUPLICATE],
        "leaked": counts[LEAKED],
        "near_duplicates": {"train": counts[NEAR_DUPLICATE], "leaked": counts[NEAR_LEAKED]},
    }
    metrics.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
