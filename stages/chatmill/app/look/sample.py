"""Reads some entries of files of any size: from the beginning, and where that is cheap from the middle and the end."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from chatmill.app.look.file_kinds import PACKED, kind_of, last_suffix
from chatmill.app.look.parts import Part, parts_of
from chatmill.datasets.formats.compression import open_decompressed
from chatmill.datasets.formats.containers import files_of, rows_of
from chatmill.datasets.formats.example import Reject, num_bytes
from chatmill.datasets.formats.row_readers import json_entries

MAX_ENTRIES = 500  # of the beginning of a file
MAX_BYTES = 3_000_000  # of the entries of a part, about
MAX_FILES = 9  # of a folder, of which entries are read
_MAX_KINDS = 200  # files of a folder that are opened to see what they are
_TEXT_BYTES = 300_000  # from the beginning of a text file


@dataclass
class Sample:
    """What was found in a file or folder, and the parts of it that are looked at."""

    path: Path
    kind: str  # in words, such as "JSON lines"
    files: list[Path]  # of that kind
    others: list[Path]  # in the folder
    parts: list[Part] = field(default_factory=list)
    bytes: int = 0
    rows: list[Any] = field(default_factory=list)  # of the first parts, parsed
    entries: int = 0  # of the whole file, about, if `is_complete` does not say that these are all
    is_complete: bool = False
    limit: int = MAX_ENTRIES  # of the entries of a part

    @property
    def is_text(self) -> bool:
        """Whether it has no rows but text."""
        return self.kind.startswith(("plain text", "Markdown"))


def take_sample(path: Path, scratch: Path) -> Sample:
    """The parts of a file or folder that are looked at; `scratch` gets copies of some.

    Raises ValueError for files that cannot be read.
    """
    every = files_of(path)
    kinds = _kinds(_some(every, _MAX_KINDS))
    most = Counter(kind for kind in kinds.values() if kind not in ("Markdown", "YAML")) or Counter(kinds.values())
    weight = {kind: sum(file.stat().st_size for file in kinds if kinds[file] == kind) for kind in most}
    chosen = max(weight, key=lambda kind: weight[kind])
    suffixes = {_suffix(file) for file in kinds if kinds[file] == chosen}
    unread = {*_some(every, _MAX_KINDS)} - kinds.keys()
    files = [file for file in every if _suffix(file) in suffixes and kinds.get(file, chosen) == chosen]
    files = [file for file in files if file not in unread]
    sample = Sample(path, chosen, files, [])
    fill(sample, every, scratch)
    return sample


def fill(sample: Sample, every: list[Path], scratch: Path) -> None:
    """Choose the parts of the sample's files and read their rows; `every` is all files of the folder."""
    files = sample.files
    sample.others = [file for file in every if file not in {*files}]
    sample.bytes = sum(file.stat().st_size for file in files)
    alone = len(files) == 1
    sample.parts = [p for file in _some(files, MAX_FILES) for p in parts_of(file, sample.kind, scratch, alone=alone)]
    sample.rows = []
    _read_rows(sample)


def _read_text(sample: Sample) -> None:
    files = _some(sample.files, MAX_FILES)
    texts = [first_text(file) for file in files]
    sample.rows = [text for whole in texts for text in re.split(r"\n(?:[ \t]*\n)+", whole) if text.strip()]
    count, size = sum(text.count("\n") + (not text.endswith("\n")) for text in texts), sum(map(num_bytes, texts))
    total = sum(map(_unpacked_bytes, sample.files))
    sample.is_complete = len(files) == len(sample.files) and all(file.stat().st_size < _TEXT_BYTES for file in files)
    sample.entries = count if sample.is_complete else round(total * count / max(1, size))
    sample.limit = max(20, min(MAX_ENTRIES, MAX_BYTES * count // max(1, size)) // len(files))


def first_rows(file: Path, kind: str, count: int) -> list[Any]:
    """The first rows of a file, or the first paragraphs of a text."""
    if kind.startswith(("plain text", "Markdown")):
        return re.split(r"\n(?:[ \t]*\n)+", first_text(file))
    return list(islice(_rows(file, kind), count))


def _kinds(files: list[Path]) -> dict[Path, str]:
    """What the files are. Raises ValueError for one that cannot be read, unless there are others."""
    kinds, errors = {}, []
    for file in files:
        try:
            kinds[file] = kind_of(file)
        except ValueError as error:
            errors.append(error)
    if not kinds:
        raise errors[0]
    return kinds


def _some(files: list[Path], count: int) -> list[Path]:
    """At most so many of the files, evenly."""
    step = max(1, (len(files) - 1) / max(1, count - 1))
    return [files[round(i * step)] for i in range(min(count, len(files)))]


def _suffix(file: Path) -> str:
    return "".join(suffix for suffix in file.suffixes[-2:] if suffix in PACKED or suffix == last_suffix(file))


def _read_rows(sample: Sample) -> None:
    """Parse the first rows of each part, and say how many entries there are, about: of text the lines."""
    if sample.is_text:
        _read_text(sample)
        return
    share = max(30, MAX_ENTRIES // max(1, len(sample.parts)))
    size = count = 0
    ended = True
    for part in sample.parts:
        if part.where != "the beginning":
            continue
        rows = _rows(part.file, sample.kind)
        found = []
        for row in islice(rows, MAX_ENTRIES if len(sample.parts) < 4 else share):
            found.append(row)
            size += _size(row, keys=not sample.kind.startswith(("CSV", "TSV")))
            if size > MAX_BYTES:
                break
        ended = ended and next(rows, None) is None
        count += len(found)
        sample.rows += found
    most = MAX_ENTRIES if len(sample.parts) < 4 else share
    sample.limit = min(most, max(20, MAX_BYTES * count // max(1, size))) if count else most
    sample.is_complete = ended and len(_some(sample.files, MAX_FILES)) == len(sample.files)
    sample.entries = count if sample.is_complete else _estimate(sample, count, size)


def _rows(file: Path, kind: str) -> Iterator[Any]:
    if kind.startswith("a JSON object"):
        entries = (entry for entry in json_entries(file) if not isinstance(entry, Reject))
        return ({key: value} for _, key, value in entries)
    if kind.startswith(("plain text", "Markdown", "YAML")):
        return iter(())
    return (row[1] for row in rows_of(file) if not isinstance(row, Reject))


def first_text(file: Path) -> str:
    """The first lines of a text file. Raises ValueError where they are not UTF-8."""
    with open_decompressed(file) as stream:
        block = stream.read(_TEXT_BYTES)
    complete = block[: block.rfind(b"\n") + 1] if len(block) == _TEXT_BYTES and b"\n" in block else block
    try:
        text = complete.decode("utf-8-sig", "ignore" if b"\n" not in block else "strict")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 at byte {error.start}: convert it, as by iconv -t utf-8") from error
    return text.replace("\r\n", "\n")


def _size(value: Any, *, keys: bool = True) -> int:
    """The bytes of the texts in a value, and of keys if they are said in each row, and a few for all else."""
    if isinstance(value, str):
        return num_bytes(value)
    if isinstance(value, dict):
        return sum((len(str(key)) + 6 if keys else 1) + _size(item) for key, item in value.items())
    if isinstance(value, list):
        return 2 + sum(map(_size, value))
    return 4


def _estimate(sample: Sample, count: int, size: int) -> int:
    """The number of entries of all files, by the bytes that those which were read have."""
    if sample.kind == "Parquet":
        return sum(map(_parquet_rows, sample.files))
    if sample.kind == "Arrow" and len(sample.files) == 1:
        return count
    total = sum(_unpacked_bytes(file) for file in sample.files)
    file = sample.parts[0].file
    if sample.kind.startswith("JSON lines") and len(sample.files) == 1:
        with open_decompressed(file) as stream:
            size = sum(len(stream.readline()) for _ in range(count))
    return max(count, round(total * count / max(1, size)))


def _unpacked_bytes(file: Path) -> int:
    """The bytes of a file when it is unpacked, about: by how its first ones are packed."""
    size = file.stat().st_size
    if file.suffix not in PACKED:
        return size
    import zlib

    with open_decompressed(file) as stream:
        start = stream.read(1 << 20)
    return round(size * len(start) / max(1, len(zlib.compress(start, 6))))


def _parquet_rows(file: Path) -> int:
    """The number of its rows. Raises ValueError for a damaged file."""
    from pyarrow import ArrowException, parquet

    try:
        return int(parquet.read_metadata(file).num_rows)
    except ArrowException as error:
        raise ValueError(f"{file}: damaged, or not Parquet: {error}") from error
