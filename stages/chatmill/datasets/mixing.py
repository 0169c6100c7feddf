"""What `mix` does: finds duplicates among all sources, and reads and writes the files.

Each record has keys: hashes of its text and of what it asks. Keys are divided into shards by their value; equal ones
meet in one shard, which memory holds.
"""

import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from math import ceil, log, log1p
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from chatmill.datasets.near_duplicates import WITHIN, RecordFiles, keys_of, mark_near_duplicates
from chatmill.datasets.split import (
    DUPLICATE,
    LEAKED,
    SPLITS,
    STATES,
    TRAIN,
    SplitName,
    fixed_side,
    is_by_column,
    is_generated,
    question_of,
)
from chatmill.pipeline.manifest import check_file, read_json
from chatmill.pipeline.progress import progress
from chatmill.workers import FileRange, OrderedMap

NearScope = Literal["across", "within", "off"]  # other sources only, all, or nothing

SHARD_BYTES = 8_000_000  # of keys that are sorted in memory at a time
MAX_SHARDS = 1024  # of 65,536 at most: their numbers are of 16 bits
SHARDED = {"exact": 1, "question": 1, "near": 6}  # bytes of keys, relative to a sixth of the records'
HASHED = 4  # added to the split in a key where it follows from the hash of the question
BY_COLUMN = 8  # the same for one that follows from a column of groups
KEY_DTYPE = np.dtype([("hash", "<u8"), ("low", "<u8"), ("record", "<u8"), ("split", "u1"), ("trained", "<i4")])
ROLE = re.compile(r"<\|im_start\|>(\w+)\n")


def digest(
    part: FileRange, *, split_of: Callable[[str], SplitName], scopes: dict[str, NearScope | None] | None
) -> tuple[NDArray[np.int64], dict[str, NDArray[np.void]]]:
    """The n records of a file range as (n, 3), the split and the bytes of the text and of the line, and keys by kind.

    Keys are equal where records are: (n,) of `exact` and `question`, and as many `near` as the texts give. Records are
    numbered from 0. `scopes` says for each source what its records are compared with for near-duplicates; with None
    there are none. Raises ValueError for a line that is not a record.
    """
    records: list[tuple[int, int, int]] = []
    order: list[tuple[int, int]] = []  # what equal keys are ordered by
    exact: list[bytes] = []
    questions: list[bytes] = []
    compared: dict[int, str] = {}
    scope = scopes.get(part.file.stem) if scopes is not None else "off"
    for number, line in enumerate(part.lines()):
        try:
            record = from_json(line)
            text, group = record["text"], record["group"]
            content = text.encode()
            split, trained = SPLITS.index(split_of(group)), count_extra_trained(text, record.get("train"))
            questions.append(_hash(question_of(group, text).encode()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problem = f"not a record of a conversation: {line[:60]!r}: run prepare again"
            raise ValueError(f"{part.file}: {problem}") from error
        exact.append(_hash(content))
        follows = 0 if fixed_side(group) or is_generated(group) else BY_COLUMN if is_by_column(group) else HASHED
        order.append((split + follows, trained))
        records.append((split, len(content), len(line)))
        within = scope == "within" or (scope is None and not is_generated(group))
        if scope != "off":
            compared[number | WITHIN * within] = text
    near = keys_of(list(compared.values()), list(compared))
    keys = {"exact": _keys(exact, order), "question": _keys(questions, order), "near": near}
    return np.array(records, np.int64).reshape(-1, 3), keys


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:16]


def count_extra_trained(text: str, train: list[bool | None] | None) -> int:
    """The messages that flags train, less those of the assistant, which are trained without flags; None is no flag."""
    roles = ROLE.findall(text) if train else []
    return sum(flag - (role == "assistant") for role, flag in zip(roles, train or (), strict=True) if flag is not None)


def _keys(hashes: list[bytes], order: list[tuple[int, int]]) -> NDArray[np.void]:
    """A key for each record: its hash and number, and what equal ones are ordered by (`duplicates_in`)."""
    keys = np.empty(len(hashes), KEY_DTYPE)
    keys["hash"], keys["low"] = np.frombuffer(b"".join(hashes), "<u8").reshape(-1, 2).T
    keys["split"], keys["trained"] = np.array(order, np.int64).reshape(-1, 2).T
    keys["record"] = np.arange(len(hashes))
    return keys


def duplicates_in(shard: Path, *, kind: str) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The records in a shard of keys that repeat another one, and those that would leak, as it is on another side.

    Of equal texts one remains: one whose side is fixed or that was generated goes before all others, then test before
    validation before train, then the most trained messages, then the first. Equal questions all remain, but those that
    leak: one whose side follows from the question, if the first is on another side; and one whose side follows from a
    column, if it is in train and the first is not. A key's `split` is its side and, times HASHED, whence that follows.
    """
    keys = np.fromfile(shard, KEY_DTYPE)
    keys = keys[np.lexsort((keys["record"], -keys["trained"], keys["split"], keys["low"], keys["hash"]))]
    first = np.ones(len(keys), bool)
    first[1:] = (keys["hash"][1:] != keys["hash"][:-1]) | (keys["low"][1:] != keys["low"][:-1])
    split = keys["split"] % HASHED
    is_hashed = keys["split"] // HASHED == 1
    kept_split = split[first][np.cumsum(first) - 1]
    leaked = (split == TRAIN) & (kept_split != TRAIN)
    if kind == "question":
        leaked = (is_hashed & (split != kept_split)) | (leaked & (keys["split"] >= BY_COLUMN))
    return keys["record"][~first & (kind == "exact")], keys["record"][leaked]


def find_duplicates(
    chunks: list[FileRange],
    folder: Path,
    split_of: Callable[[str], SplitName],
    scopes: dict[str, NearScope | None] | None,
    parallel_map: OrderedMap,
) -> None:
    """Write files about the records: `states` (uint8), `sizes` (uint32, bytes of text), `positions` (uint64).

    The state of a record is the number of its split, or why it is dropped (chatmill.datasets.split). Positions are the
    byte at which each record begins in all files, one after another, and at the end the size of all.
    """
    # Read the records once; their keys go to the shards.
    total = sum(chunk.end - chunk.start for chunk in chunks)
    shards = {kind: _shards(folder, kind, times * total) for kind, times in SHARDED.items()}
    count = position = 0
    read = partial(digest, split_of=split_of, scopes=scopes)
    for records, keys in progress(parallel_map(read, chunks), "digests", total=len(chunks)):
        splits, sizes, lengths = records.T
        _append(folder / "states", splits.astype(np.uint8))
        _append(folder / "sizes", sizes.astype(np.uint32))
        _append(folder / "positions", (position + np.cumsum(lengths) - lengths).astype(np.uint64))
        position += int(lengths.sum())
        for kind, files in shards.items():
            own = keys[kind].copy()  # what Ray gives is read-only
            own["record"] += count
            _divide(own, files)
        count += len(records)
    _append(folder / "positions", np.array([position], np.uint64))

    # Equal texts first, then equal questions on two sides, then what is nearly equal.
    for kind in ("exact", "question") if count else ():
        state = np.memmap(folder / "states", np.uint8, "r+")
        found = parallel_map(partial(duplicates_in, kind=kind), shards[kind])
        for copies, leaked in progress(found, f"{kind} duplicates", total=len(shards[kind])):
            still_leaked = leaked if kind == "exact" else leaked[state[leaked] < DUPLICATE]
            state[copies] = DUPLICATE
            state[still_leaked] = LEAKED
    if count and scopes is not None:
        files = list(dict.fromkeys(chunk.file for chunk in chunks))
        mark_near_duplicates(shards["near"], RecordFiles(files, folder), parallel_map)


def _divide(keys: NDArray[Any], shards: list[Path]) -> None:
    """Append each key to its shard, in which all equal ones are."""
    numbers = (keys["hash"] % len(shards)).astype(np.uint16)
    order = np.argsort(numbers, kind="stable")
    bounds = np.searchsorted(numbers[order], np.arange(len(shards) + 1))
    for shard, start, end in zip(shards, bounds, bounds[1:], strict=False):
        if start < end:
            _append(shard, keys[order[start:end]])


def _shards(folder: Path, kind: str, size: int) -> list[Path]:
    """Files of about SHARD_BYTES for the keys of `size` bytes of records; a key has at most a sixth of its record's."""
    files = [folder / f"{kind}-{number}" for number in range(min(MAX_SHARDS, 1 + size // (6 * SHARD_BYTES)))]
    for file in files:
        file.touch()
    return files


def _append(file: Path, array: NDArray[Any]) -> None:
    with file.open("ab") as out:
        out.write(array.tobytes())


# The files that mix reads and writes: those that prepare wrote, and one for each split.


def prepared_files(folder: Path, sources: list[str]) -> list[Path]:
    """The prepared file of each source. Raises ValueError if one is missing or changed, or if there are others."""
    expected = {f"{source}{end}" for source in sources for end in (".jsonl", ".rejects.jsonl")}
    if others := sorted({file.name.partition(".")[0] for file in folder.glob("*.jsonl") if file.name not in expected}):
        left = " ".join(f"{shlex.quote(str(folder / name))}.*" for name in others)
        raise ValueError(f"{folder}: params.yaml has no section prepare.{', prepare.'.join(others)}: call `rm {left}`")
    files = [folder / f"{source}.jsonl" for source in sources]
    for file in files:
        if not file.exists():
            raise ValueError(f"{file} is missing: run dvc repro prepare@{file.stem}")
        for written in (file, file.with_suffix(".rejects.jsonl")):
            check_file(written, file.with_suffix(".manifest.json"))
    return files


def count_rejects(file: Path) -> dict[str, int]:
    """The number of rejected entries of a prepared file, by reason; parts of entries are not counted."""
    with file.with_suffix(".rejects.jsonl").open(encoding="utf-8") as lines:
        rejects = map(json.loads, lines)
        return dict(sorted(Counter(reject["reason"] for reject in rejects if not reject.get("part")).items()))


def read_counts(file: Path) -> dict[str, Any]:
    manifest = file.with_suffix(".manifest.json")
    try:
        return dict(read_json(manifest)["counts"])
    except ValueError as error:
        raise ValueError(f"{manifest}: {error}") from error


def count_states(folder: Path) -> tuple[list[int], list[int]]:
    """The records of each state, as find_duplicates writes them, and the bytes of their texts."""
    counts, sizes = np.zeros(STATES, np.int64), np.zeros(STATES, np.int64)
    with (folder / "states").open("rb") as states, (folder / "sizes").open("rb") as bytes_of_text:
        while block := states.read(1 << 20):  # as many records as 4 << 20 bytes of sizes
            state = np.frombuffer(block, np.uint8)
            counts += np.bincount(state, minlength=STATES)
            size = np.frombuffer(bytes_of_text.read(4 << 20), np.uint32)
            sizes += np.bincount(state, size, minlength=STATES).astype(np.int64)
    return counts.tolist(), sizes.tolist()


def check_splits(counts: Sequence[int], shares: Sequence[float]) -> None:
    """Raise ValueError for an empty split, with the number of groups of which one misses it once in a hundred times."""
    total = sum(counts[: len(SPLITS)])
    for name, count, share in zip(SPLITS, counts, shares, strict=False):
        if not count:
            least = ceil(log(0.01) / log1p(-share))
            wanted = f"expected at least {least:,}, of which a share of {share:g} is for {name}: "
            remedy = f"{wanted if total < least else ''}add data, or change mix.validation_share and mix.test_share"
            raise ValueError(f"no conversations remain for {name}, of {total:,} in all: {remedy}")


def write_splits(files: list[Path], folder: Path, outputs: list[Path]) -> None:
    """Copy the lines of prepared files to the outputs, by the states in a folder, which are numbers of outputs."""
    states = iter(np.memmap(folder / "states", np.uint8, "r"))
    with ExitStack() as stack:
        outs = [stack.enter_context(output.open("wb")) for output in outputs]
        for file in progress(files, "write", total=len(files)):
            with file.open("rb") as lines:
                for line, state in zip(lines, states, strict=False):
                    if state < len(outs):
                        outs[state].write(line)
