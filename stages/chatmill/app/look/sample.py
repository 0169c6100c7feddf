"""Takes a sample of a dataset: what its files are, and some of their entries."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from chatmill.datasets.formats.containers import files_of, rows_of
from chatmill.datasets.formats.example import Reject
from chatmill.datasets.formats.row_readers import PACKED, inner_suffix, lines, open_decompressed, separator_of

# Tells what a file is, by its name and its first bytes.

TEXT, MARKDOWN, YAML = "plain text", "Markdown", "YAML"
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_BY_SUFFIX = {
    ".csv": "CSV", ".tsv": "TSV", ".parquet": "Parquet", ".arrow": "Arrow", ".feather": "Arrow",
    ".txt": TEXT, ".text": TEXT, ".md": MARKDOWN, ".yaml": YAML, ".yml": YAML,
}  # fmt: skip
_BY_MARK = {b"PAR1": "Parquet", b"ARROW1": "Arrow"}


def kind_of(file: Path) -> tuple[str, str]:
    """What a file holds, and the same with how it is written and compressed.

    Raises ValueError for one that no reader reads.
    """
    with open_decompressed(file) as stream:
        start = stream.read(1 << 16).removeprefix(b"\xef\xbb\xbf").lstrip()
    if not start:
        raise ValueError(f"{file}: empty: expected conversations or texts")
    if start.startswith(b"PK\x03\x04"):
        raise ValueError(f"{file}: a ZIP archive, or a document of an office program: unpack it, or save it as CSV")
    marked = next((kind for mark, kind in _BY_MARK.items() if start.startswith(mark)), None)
    kind = marked or _BY_SUFFIX.get(inner_suffix(file).lower(), "JSON")
    if b"\x00" in start and kind not in _BY_MARK.values():
        raise ValueError(f"{file}: binary data that no reader knows: save it as JSON lines, CSV, Parquet or text")
    words = kind
    if kind == "JSON":
        if not start.startswith((b"{", b"[", b'"')):
            raise ValueError(f"{file}: no JSON, and its name does not say what else: name it .csv, .tsv or .txt")
        has_lines = re.match(rb"[^\n]{2,}\n\s*[{\[\"]", start) or inner_suffix(file).lower() in (".jsonl", ".ndjson")
        words = "JSON lines" if has_lines else "a JSON array" if start.startswith(b"[") else "a JSON object"
    if kind in ("CSV", "TSV"):
        words += f", separated by {_SEPARATORS[separator_of(file)]}"
    return kind, words + (f", compressed by {PACKED[file.suffix]}" if file.suffix in PACKED else "")


# Reads some entries of files of any size, from their beginnings.

_MAX_ENTRIES = 500  # of all files
MIN_ENTRIES = 30  # of a file, of as many as there are
_MAX_LINES = 5000  # of a text file
_MAX_LENGTH = 3_000_000  # characters of the entries of a file, about
_MAX_FILES = 30  # of a folder, of which entries are read


@dataclass
class Sample:
    """The files that are looked at, and what was read of them."""

    path: Path
    kind: str  # of what the files hold
    words: set[str]  # their kinds as people say it
    files: list[Path]
    every: list[Path]  # in the folder
    errors: dict[Path, str]  # of files in the folder that cannot be read
    rows: dict[Path, list[Any]] = field(default_factory=dict)  # of beginnings of files, parsed; of text its paragraphs
    entries: int = 0  # that were read, of text lines
    is_complete: bool = False
    limit: int = _MAX_ENTRIES  # of the entries of a file

    @property
    def is_text(self) -> bool:
        return self.kind in (TEXT, MARKDOWN)

    @property
    def all_rows(self) -> list[Any]:
        return [row for rows in self.rows.values() for row in rows]

    @property
    def others(self) -> list[Path]:
        return [file for file in self.every if file not in {*self.files}]

    def read(self) -> None:
        """Read the beginnings of the files."""
        chosen = self.files[:: max(1, len(self.files) // _MAX_FILES)][:_MAX_FILES]
        self.limit = max(MIN_ENTRIES, _MAX_ENTRIES // len(chosen))
        self.rows, self.entries, self.is_complete = {}, 0, len(chosen) == len(self.files)
        for file in chosen:
            entries, some, length = _entries(file, self.kind), list[Any](), 0
            for entry in islice(entries, _MAX_LINES if self.is_text else self.limit):
                some.append(entry)
                length += len(str(entry))
                if length > _MAX_LENGTH:
                    self.limit = min(self.limit, max(20, len(some)))
                    break
            self.is_complete &= next(entries, None) is None
            self.entries += len(some)
            blocks = re.split(r"\n(?:[ \t]*\n)+", "\n".join(some)) if self.is_text else []
            self.rows[file] = [block for block in blocks if block.strip()] if self.is_text else some


def take_sample(path: Path) -> Sample:
    """A sample of a file, or of a folder's files of the kind with the most bytes; Markdown and YAML only if alone.

    Raises ValueError for files that cannot be read.
    """
    every = files_of(path)
    kinds: dict[Path, str] = {}
    words: dict[Path, str] = {}
    errors: dict[Path, str] = {}
    for file in every:
        try:
            kinds[file], words[file] = kind_of(file)
        except ValueError as error:
            errors[file] = str(error)
    if not kinds:
        raise ValueError(next(iter(errors.values())))
    if TEXT in kinds.values() and [*kinds.values()].count(MARKDOWN) > 1:  # a single one may describe the data
        kinds = {file: TEXT if kind == MARKDOWN else kind for file, kind in kinds.items()}
    sizes = {kind: sum(file.stat().st_size for file in kinds if kinds[file] == kind) for kind in {*kinds.values()}}
    chosen = max(sizes.keys() - {MARKDOWN, YAML} or sizes, key=lambda kind: sizes[kind])
    files = [file for file, kind in kinds.items() if kind == chosen]
    sample = Sample(path, chosen, {words[file] for file in files}, files, every, errors)
    sample.read()
    return sample


def _entries(file: Path, kind: str) -> Iterator[Any]:
    """The rows of a file, or the lines of text. Raises ValueError for a line of text that cannot be read."""
    is_text = kind in (TEXT, MARKDOWN)
    for row in () if kind == YAML else lines(file) if is_text else rows_of(file):
        if not isinstance(row, Reject):
            yield row[1]
        elif is_text:
            remedy = ": convert it, as by iconv -t utf-8" if row.reason == "not_utf8" else ""
            raise ValueError(f"{row.place}: {row.detail}{remedy}")
