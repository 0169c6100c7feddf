"""Large files of lines: a folder of parts in place of the file, which is read like one.

    data/chat/train.jsonl/
        part-00000
        part-00001
        parts.json   {"format": 1, "parts": [{"name": "part-00000", "sha256": "…", "bytes": 25600118, "records": 9}, …]}

A part has the lines that begin in its share of the bytes, so that the parts are the same whoever wrote them. If a store
is named, parts lie there, and the folder has their list alone.
"""

import io
import json
import os
import re
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import accumulate, count
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from chatmill.pipeline.store import Store, current_store, sha256_of

PART_LIST = "parts.json"
FORMAT_VERSION = 1
REMEDY = "run `chatmill repair`, then `dvc repro`"
_COUNTED_AT_ONCE = 1 << 24
_BUFFER = 1 << 16


class Part(NamedTuple):
    """A part as the list describes it."""

    name: str
    sha256: str
    bytes: int
    records: int  # lines, or numbers of an array


def read_parts(folder: Path) -> Sequence[Part]:
    """The parts of a folder, in their order. Raises ValueError for another folder, or a list that is damaged."""
    file = folder / PART_LIST
    try:
        state = file.stat()
        return _parse(file.absolute(), state.st_mtime_ns, state.st_size)
    except FileNotFoundError as error:
        raise ValueError(f"{folder} is a folder without {PART_LIST}: expected a file, or its parts") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{file}: not a list of parts: {REMEDY}") from error


@lru_cache(maxsize=8)  # each shard opens the file, whose list may have thousands of parts
def _parse(file: Path, time: int, size: int) -> tuple[Part, ...]:
    """The parts that a list names, which was last changed at this time."""
    content = json.loads(file.read_text(encoding="utf-8"))
    parts = tuple(Part(**part) for part in content["parts"])
    if content["format"] != FORMAT_VERSION or not (parts and all(map(_is_possible, parts, count()))):
        raise ValueError("unknown format")
    return parts


def _is_possible(part: Part, number: int) -> bool:
    """Whether a part of this number can be so; its checksum names files, too. Raises TypeError for some others."""
    numbers = type(part.bytes) is int and type(part.records) is int and part.bytes > 0 <= part.records
    return numbers and part.name == part_name(number) and bool(re.fullmatch("[0-9a-f]{64}", part.sha256))


def part_name(number: int) -> str:
    """`part-00000` and so on."""
    return f"part-{number:05}"


def size_of(file: Path) -> int:
    """The bytes of a file, or of all its parts."""
    return sum(part.bytes for part in read_parts(file)) if file.is_dir() else file.stat().st_size


def open_parts(file: Path) -> io.BufferedReader:
    """A file, or its parts as one, for reading."""
    return io.BufferedReader(_JoinedParts(file), _BUFFER) if file.is_dir() else file.open("rb")


def open_part(folder: Path, part: Part) -> BinaryIO:
    """A part for reading, from the folder or the store. Raises ValueError where it is in neither, or damaged there."""
    file = folder / part.name
    if not file.exists():
        return _named_store(file).open(part.sha256, part.bytes, str(file))
    if file.stat().st_size != part.bytes:
        raise damaged(file)
    return file.open("rb")


def damaged(file: Path) -> ValueError:
    """The error of a part that is not as the list says."""
    return ValueError(f"{file} is damaged or was edited: {REMEDY}")


def check_parts(folder: Path, *, in_store: bool = False) -> None:
    """Raise ValueError if a part in the folder, or also one in the store, is not as the list says.

    A part in the store is checked when it is fetched, too.
    """
    for part in read_parts(folder):
        file = folder / part.name
        if not file.exists():
            problem = _named_store(file).problem_of(part.sha256, part.bytes) if in_store else None
            if problem:
                raise ValueError(f"{file}, {part.sha256} in the store, {problem}")
        elif file.stat().st_size != part.bytes or sha256_of(file) != part.sha256:
            raise damaged(file)


def _named_store(file: Path) -> Store:
    """The store that has a part. Raises ValueError where none is named."""
    if (store := current_store()) is None:
        raise ValueError(f"{file} is missing: run `dvc checkout`, or name the store that has it, by CHATMILL_STORE")
    return store


class _JoinedParts(io.RawIOBase):
    """The parts of a folder as one file, of which one part at a time is open."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._parts = folder, read_parts(folder)
        self._ends = list(accumulate(part.bytes for part in self._parts))
        self._place, self._number, self._part = 0, -1, io.BytesIO()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._ends[-1]}[whence]
        return self._place

    def readinto(self, buffer: Any) -> int:
        number = bisect_right(self._ends, self._place)
        if number == len(self._parts):
            return 0
        if number != self._number:
            self._part.close()
            self._part, self._number = open_part(self._folder, self._parts[number]), number  # type: ignore[assignment]
        start = self._ends[number] - self._parts[number].bytes
        self._part.seek(self._place - start)
        data = self._part.read(len(buffer))
        if not data:
            raise damaged(self._folder / self._parts[number].name)
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)

    def close(self) -> None:
        self._part.close()
        super().close()


def part_file(output: Path, number: int, count: int) -> Path:
    """Where the `number`th of `count` parts is written: the output itself if it is the only one."""
    return output if count == 1 else output / part_name(number)


def _count_lines(file: Path) -> int:
    with file.open("rb") as stream:
        return sum(data.count(b"\n") for data in iter(partial(stream.read, _COUNTED_AT_ONCE), b""))


def begin_parts(output: Path, count: int) -> None:
    """Make so many empty parts in place of what was there."""
    if output.is_dir():
        shutil.rmtree(output)
    output.unlink(missing_ok=True)
    if count > 1:
        output.mkdir()
    for number in range(count):
        part_file(output, number, count).touch()


def add_part(output: Path, count: int) -> Path:
    """Where the next part of an output with so many parts is written; a file becomes the first part of a folder."""
    if count == 1:
        first = output.with_name(f"{output.name}.{part_name(0)}")
        output.rename(first)
        output.mkdir()
        first.rename(output / part_name(0))
    return output / part_name(count)


def finish_parts(
    output: Path,
    count: int,
    ordered_map: Callable[..., Iterable[Part]] = map,
    count_records: Callable[[Path], int] = _count_lines,
) -> None:
    """Write the list of an output of several parts; if a store is named, they are moved there."""
    if count > 1:
        store, files = current_store(), [output / part_name(i) for i in range(count)]
        parts = list(ordered_map(partial(_describe, store=store, count_records=count_records), files))
        content = {"format": FORMAT_VERSION, "parts": [part._asdict() for part in parts]}
        (output / PART_LIST).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        for file in files if store else ():
            file.unlink()


def _describe(file: Path, *, store: Store | None, count_records: Callable[[Path], int]) -> Part:
    part = Part(file.name, sha256_of(file), file.stat().st_size, count_records(file))
    if store is not None:
        store.add(file, part.sha256)
    return part


class PartsWriter:
    """Writes lines to a file, or beyond `part_bytes` to a folder of parts. Used in a `with` statement."""

    def __init__(self, output: Path, part_bytes: int) -> None:
        self._output, self._part_bytes = output, part_bytes
        begin_parts(output, 1)
        self._stream, self._count, self._is_full = output.open("wb"), 1, False
        self._start = self._written = 0

    def __enter__(self) -> "PartsWriter":
        return self

    def tell(self) -> int:
        """The bytes that were written."""
        return self._written

    def write(self, data: bytes) -> None:
        """Write some bytes, of which lines may continue in the next ones."""
        while data:
            if self._is_full:
                self._begin_part()
            limit = (self._start // self._part_bytes + 1) * self._part_bytes
            end = data.find(b"\n", max(0, limit - 1 - self._written)) + 1 or len(data)
            self._is_full = self._written + end >= limit and data[end - 1 : end] == b"\n"
            self._stream.write(data[:end])
            self._written += end
            data = data[end:]

    def _begin_part(self) -> None:
        self._stream.close()
        self._stream = add_part(self._output, self._count).open("wb")
        self._count, self._start, self._is_full = self._count + 1, self._written, False

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._stream.close()
        if kind is None:
            finish_parts(self._output, self._count)
