"""Reads some entries of files of any size: from the beginning, and where that is cheap from the middle and the end."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
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
_MARKDOWN = "Markdown"
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
    errors: dict[Path, str] = field(default_factory=dict)  # of files in the folder that cannot be read
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
    opened = _some(every, _MAX_KINDS)
    kinds, errors = _kinds(opened)
    contents = _contents(kinds)
    weight = Counter[str]()
    for file, content in contents.items():
        weight[content] += file.stat().st_size
    data = [content for content in weight if content not in (_MARKDOWN, "YAML")] or [*weight]
    chosen = max(data, key=lambda content: weight[content])
    taken = [file for file in contents if contents[file] == chosen]
    suffixes = {_suffix(file) for file in taken}
    files = [file for file in every if _suffix(file) in suffixes and contents.get(file, chosen) == chosen]
    files = [file for file in files if file not in errors]
    sample = Sample(path, _in_words(kinds[file] for file in taken), files, [], errors=errors)
    fill(sample, every, scratch)
    return sample


def _contents(kinds: dict[Path, str]) -> dict[Path, str]:
    """What the files hold, compressed or not. Several Markdown files are text, a single one may describe the data."""
    contents = {file: kind.partition(", compressed")[0] for file, kind in kinds.items()}
    if sum(content == _MARKDOWN for content in contents.values()) > 1 and "plain text" in contents.values():
        return {file: "plain text" if content == _MARKDOWN else content for file, content in contents.items()}
    return contents


def _in_words(kinds: Iterable[str]) -> str:
    """The kinds of files as one, such as "plain text and Markdown, some compressed by gzip"."""
    parts = [kind.partition(", compressed by ") for kind in kinds]
    content = " and ".join(sorted({content for content, _, _ in parts}, reverse=True))
    by = " and ".join(sorted({packed for _, _, packed in parts if packed}))
    return f"{content}, {'' if all(packed for *_, packed in parts) else 'some '}compressed by {by}" if by else content


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


def _kinds(files: list[Path]) -> tuple[dict[Path, str], dict[Path, str]]:
    """What the files are, and what is wrong with others. Raises ValueError where none can be read."""
    kinds, errors = {}, {}
    for file in files:
        try:
            kinds[file] = kind_of(file)
        except ValueError as error:
            errors[file] = str(error)
    if not kinds:
        raise ValueError(next(iter(errors.values())))
    return kinds, errors


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
    if sample.kind in ("Parquet", "Arrow") and len(sample.files) == 1:
        return _table_rows(sample.files[0], sample.kind) or count
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


def _table_rows(file: Path, kind: str) -> int | None:
    if kind == "Parquet":
        from pyarrow import parquet

        return int(parquet.read_metadata(file).num_rows)
    return None
