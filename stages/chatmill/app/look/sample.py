"""Takes a sample of a dataset: what its files are, and some of their entries."""

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from chatmill.datasets.formats.containers import files_of, pyarrow_errors, rows_of
from chatmill.datasets.formats.example import Reject, num_bytes
from chatmill.datasets.formats.row_readers import PACKED, inner_suffix, lines, open_decompressed, separator_of

# Tells what a file is, by its name and its first bytes.

TEXT, MARKDOWN, YAML, PARQUET = "plain text", "Markdown", "YAML", "Parquet"
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_BY_SUFFIX = {
    ".csv": "CSV", ".tsv": "TSV", ".parquet": PARQUET, ".arrow": "Arrow", ".feather": "Arrow",
    ".txt": TEXT, ".text": TEXT, ".md": MARKDOWN, ".yaml": YAML, ".yml": YAML,
}  # fmt: skip
_BY_MARK = {b"PAR1": PARQUET, b"ARROW1": "Arrow"}
_UNREADABLE = {
    b"PK\x03\x04": "a ZIP archive, or a document of an office program: unpack it, or save it as CSV",
    b"%PDF": "a PDF: convert it to text, as by pdftotext",
    b"SQLite": "an SQLite database: export its rows as CSV or JSON lines",
    b"BZh": "compressed by bzip2: unpack it",
    b"\xfd7zXZ": "compressed by xz: unpack it",
    b"\x80\x04": "a Python pickle, which could run code: save its rows as JSON lines",
}


def kind_of(file: Path) -> tuple[str, str]:
    """What a file holds, and the same with how it is written and compressed.

    Raises ValueError for one that no reader reads.
    """
    with open_decompressed(file) as stream:
        start = stream.read(1 << 16).removeprefix(b"\xef\xbb\xbf").lstrip()
    if reason := next((reason for mark, reason in _UNREADABLE.items() if start.startswith(mark)), None):
        raise ValueError(f"{file}: {reason}")
    if not start:
        raise ValueError(f"{file}: empty: expected conversations or texts")
    marked = next((kind for mark, kind in _BY_MARK.items() if start.startswith(mark)), None)
    kind = marked or _BY_SUFFIX.get(inner_suffix(file).lower(), "JSON")
    if b"\x00" in start and kind not in _BY_MARK.values():
        raise ValueError(f"{file}: binary data that no reader knows: save it as JSON lines, CSV, Parquet or text")
    words = kind
    if kind == "JSON":
        if not start.startswith((b"{", b"[", b'"')):
            raise ValueError(
                f"{file}: no JSON, and its name does not say what else: name a table .csv or .tsv, a text .txt"
            )
        has_lines = re.match(rb"[^\n]{2,}\n\s*[{\[\"]", start) or inner_suffix(file).lower() in (".jsonl", ".ndjson")
        words = "JSON lines" if has_lines else "a JSON array" if start.startswith(b"[") else "a JSON object"
    if kind in ("CSV", "TSV"):
        words += f", separated by {_SEPARATORS[separator_of(file)]}"
    return kind, words + (f", compressed by {PACKED[file.suffix]}" if file.suffix in PACKED else "")


def ending(file: Path) -> str:
    """The end of a name, which says what a file is and how it is compressed, such as `.jsonl.gz`."""
    return inner_suffix(file) + (file.suffix if file.suffix in PACKED else "")


# Reads some entries of files of any size, from their beginnings.

MAX_ENTRIES = 500  # of all files
MIN_ENTRIES = 30  # of a file, of as many as there are
MAX_BYTES = 3_000_000  # of the entries of a file, about
MAX_FILES = 9  # of a folder, of which entries are read
_MAX_KINDS = 200  # files of a folder that are opened to see what they are
_MAX_LINES = 5000  # of a text file
_TEXT_BYTES = 300_000  # of these lines, about


@dataclass
class Sample:
    """The files that are looked at, and what was read of them."""

    path: Path
    kind: str  # of what the files hold
    words: set[str]  # their kinds as people say it
    files: list[Path]
    others: list[Path] = field(default_factory=list)  # in the folder
    read: list[Path] = field(default_factory=list)  # of them, those of which the beginning was read
    rows: list[Any] = field(default_factory=list)  # of the beginnings, parsed; of text its paragraphs
    entries: int = 0  # of all files, of text its lines; about, unless these were all read
    is_complete: bool = False
    errors: dict[Path, str] = field(default_factory=dict)  # of files in the folder that cannot be read
    limit: int = MAX_ENTRIES  # of the entries of a file

    @property
    def is_text(self) -> bool:
        return self.kind in (TEXT, MARKDOWN)

    @property
    def bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)


def take_sample(path: Path) -> Sample:
    """A sample of a file, or of those files of a folder whose content has the most bytes.

    Raises ValueError for files that cannot be read.
    """
    every = files_of(path)
    opened = evenly(every, _MAX_KINDS)
    found: dict[Path, tuple[str, str]] = {}
    errors: dict[Path, str] = {}
    for file in opened:
        try:
            found[file] = kind_of(file)
        except ValueError as error:
            errors[file] = str(error)
    if not found:
        raise ValueError(next(iter(errors.values())))
    kinds = {file: kind for file, (kind, _) in found.items()}
    if TEXT in kinds.values() and [*kinds.values()].count(MARKDOWN) > 1:  # a single one may describe the data
        kinds = {file: TEXT if kind == MARKDOWN else kind for file, kind in kinds.items()}
    sizes = Counter[str]()
    for file, kind in kinds.items():
        sizes[kind] += file.stat().st_size
    chosen = max(sizes.keys() - {MARKDOWN, YAML} or sizes, key=lambda kind: sizes[kind])
    taken = [file for file, kind in kinds.items() if kind == chosen]
    alike = {ending(file) for file in taken}
    files = [file for file in every if (kinds.get(file) == chosen if file in opened else ending(file) in alike)]
    sample = Sample(path, chosen, {found[file][1] for file in taken}, files, errors=errors)
    fill(sample, every)
    return sample


def evenly(files: list[Path], count: int) -> list[Path]:
    step = max(1, (len(files) - 1) / max(1, count - 1))
    return [files[round(i * step)] for i in range(min(count, len(files)))]


def fill(sample: Sample, every: list[Path]) -> None:
    """Read the beginnings of the sample's files; `every` is all files of the folder."""
    sample.others = [file for file in every if file not in {*sample.files}]
    sample.read = evenly(sample.files, MAX_FILES)
    sample.is_complete = len(sample.read) == len(sample.files)
    sample.limit = max(MIN_ENTRIES, MAX_ENTRIES // len(sample.read))
    sample.rows, count, size = [], 0, 0
    for file in sample.read:
        entries = _entries(file, sample.kind)
        some, some_bytes = [], 0
        most, most_bytes = (_MAX_LINES, _TEXT_BYTES) if sample.is_text else (sample.limit, MAX_BYTES)
        for entry in islice(entries, most):
            some.append(entry)
            some_bytes += _size(entry, with_keys=sample.kind == "JSON")
            if some_bytes > most_bytes:
                break
        sample.is_complete &= next(entries, None) is None
        sample.rows += paragraphs_of(some) if sample.is_text else some
        count, size = count + len(some), size + some_bytes
    if count:
        sample.limit = max(20, min(sample.limit, MAX_BYTES * count // max(1, size)))
    sample.entries = count if sample.is_complete else _estimate(sample, count, size)


def first_rows(file: Path, kind: str, count: int) -> list[Any]:
    """The first rows of a file, or the paragraphs of the first lines of text."""
    is_text = kind in (TEXT, MARKDOWN)
    rows = list(islice(_entries(file, kind), _MAX_LINES if is_text else count))
    return paragraphs_of(rows) if is_text else rows


def _entries(file: Path, kind: str) -> Iterator[Any]:
    """The rows of a file, or the lines of text. Raises ValueError for a line of text that cannot be read."""
    if kind == YAML:
        return
    is_text = kind in (TEXT, MARKDOWN)
    for row in lines(file) if is_text else rows_of(file):
        if not isinstance(row, Reject):
            yield row[1]
        elif is_text:
            remedy = ": convert it, as by iconv -t utf-8" if row.reason == "not_utf8" else ""
            raise ValueError(f"{row.place}: {row.detail}{remedy}")


def paragraphs_of(some: list[str]) -> list[str]:
    return [paragraph for paragraph in re.split(r"\n(?:[ \t]*\n)+", "\n".join(some)) if paragraph.strip()]


def _size(entry: Any, *, with_keys: bool) -> int:
    """The bytes of an entry in its file, about."""
    if isinstance(entry, str):
        return num_bytes(entry) + 1
    values = [*entry.values()] if isinstance(entry, dict) and not with_keys else entry
    return num_bytes(json.dumps(values, ensure_ascii=False, default=str))


def _estimate(sample: Sample, count: int, size: int) -> int:
    """The number of entries of all files, by the bytes of those that were read."""
    if sample.kind == PARQUET:
        return sum(map(_parquet_rows, sample.files))
    return max(count, round(sum(map(_unpacked_bytes, sample.files)) * count / max(1, size)))


def _unpacked_bytes(file: Path) -> int:
    """The bytes of a file when it is unpacked, about: by how its first ones are packed."""
    size = file.stat().st_size
    if file.suffix not in PACKED:
        return size
    with open_decompressed(file) as stream:
        start = stream.read(1 << 20)
    return round(size * len(start) / max(1, len(zlib.compress(start, 6))))


def _parquet_rows(file: Path) -> int:
    with pyarrow_errors(file, "a Parquet"):
        from pyarrow import parquet

        return int(parquet.read_metadata(file).num_rows)
