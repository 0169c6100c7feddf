import re
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from chatmill.datasets.formats.containers import object_rows
from chatmill.datasets.formats.row_readers import PACKED, inner_suffix, open_decompressed, separator_of


class Container(Enum):
    """What holds the rows or the text of a file, in words."""

    JSON_LINES = "JSON lines"
    JSON_ARRAY = "a JSON array"
    JSON_OBJECT = "a JSON object"
    JSON_OBJECTS = "JSON objects"
    JSON_ROWS = "a JSON object of rows"
    CSV = "CSV"
    TSV = "TSV"
    PARQUET = "Parquet"
    ARROW = "Arrow"
    TEXT = "plain text"
    MARKDOWN = "Markdown"
    YAML = "YAML"


_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


_WITH_HEADER = (Container.CSV, Container.TSV)


_BY_SUFFIX = {
    ".csv": Container.CSV,
    ".tsv": Container.TSV,
    ".txt": Container.TEXT,
    ".text": Container.TEXT,
    ".md": Container.MARKDOWN,
    ".yaml": Container.YAML,
    ".yml": Container.YAML,
}


_UNREADABLE = {
    b"PK\x03\x04": "a ZIP archive, or a document of an office program: unpack it, or save it as CSV",
    b"%PDF": "a PDF: convert it to text, as by pdftotext",
    b"SQLite": "an SQLite database: export its rows as CSV or JSON lines",
    b"BZh": "compressed by bzip2: unpack it",
    b"\xfd7zXZ": "compressed by xz: unpack it",
    b"\x80\x04": "a Python pickle, which could run code: save its rows as JSON lines",
}


class FileKind(NamedTuple):
    """What a file is, in words: `CSV, separated by commas, compressed by gzip`."""

    container: Container
    separator: str = ""  # of a table, such as `commas`
    compression: str = ""  # such as `gzip`

    def __str__(self) -> str:
        return in_words([self])

    @property
    def content(self) -> "FileKind":
        """The kind of what it holds, compressed or not."""
        return self._replace(compression="")

    @property
    def is_text(self) -> bool:
        """Whether it has no rows but text."""
        return self.container in (Container.TEXT, Container.MARKDOWN)

    @property
    def has_header(self) -> bool:
        """Whether its first row names the columns."""
        return self.container in _WITH_HEADER

    @property
    def is_json(self) -> bool:
        """Whether its rows are JSON."""
        return self.container.name.startswith("JSON")


def kind_of(file: Path) -> FileKind:
    """What a file is. Raises ValueError for one that no reader reads."""
    with open_decompressed(file) as stream:
        start = stream.read(1 << 16)
    container = _container(file, start)
    separator = _SEPARATORS[separator_of(file)] if container in _WITH_HEADER else ""
    return FileKind(container, separator, PACKED.get(file.suffix, ""))


def in_words(kinds: Iterable[FileKind]) -> str:
    """The kinds of files as one: `plain text and Markdown, some compressed by gzip`."""
    kinds = list(kinds)
    words = [" and ".join(sorted({kind.container.value for kind in kinds}, reverse=True))]
    if separators := sorted({kind.separator for kind in kinds} - {""}):
        words.append(f"separated by {' and '.join(separators)}")
    if compressions := sorted({kind.compression for kind in kinds} - {""}):
        some = "" if all(kind.compression for kind in kinds) else "some "
        words.append(f"{some}compressed by {' and '.join(compressions)}")
    return ", ".join(words)


def _container(file: Path, start: bytes) -> Container:
    suffix = inner_suffix(file).lower()
    if reason := next((reason for mark, reason in _UNREADABLE.items() if start.startswith(mark)), None):
        raise ValueError(f"{file}: {reason}")
    if not start.strip():
        raise ValueError(f"{file}: empty: expected conversations or texts")
    if start.startswith(b"PAR1") or suffix == ".parquet":
        return Container.PARQUET
    if start.startswith(b"ARROW1") or suffix in (".arrow", ".feather"):
        return Container.ARROW
    if b"\x00" in start:
        raise ValueError(f"{file}: binary data that no reader knows: save it as JSON lines, CSV, Parquet or text")
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix]
    return _json_container(file, start)


def _json_container(file: Path, start: bytes) -> Container:
    """How the values of a JSON file stand beside each other. Raises ValueError where it is no JSON."""
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        lines = text.split(b"\n", 2)
        is_lines = len(lines) > 2 and lines[0].rstrip().endswith(b"]") and lines[1].startswith(b"[")
        return Container.JSON_LINES if is_lines else Container.JSON_ARRAY
    suffix = inner_suffix(file).lower()
    if suffix == ".json" and object_rows(file) is not None:
        return Container.JSON_ROWS
    is_named_lines = suffix in (".jsonl", ".ndjson")
    is_line = text.startswith(b"{") and b"\n" not in text.rstrip() and not is_named_lines
    if re.match(rb"\{\s*\r?\n", text) or is_line:
        with open_decompressed(file) as stream:
            is_several = re.search(rb"\n\}\s*\n?\{", stream.read(1 << 20)) is not None
        return Container.JSON_OBJECTS if is_several else Container.JSON_OBJECT
    if not text.startswith((b"{", b'"')):
        raise ValueError(
            f"{file}: no JSON, and its name does not say what else: name a table .csv or .tsv, a text .txt"
        )
    return Container.JSON_LINES


def ending(file: Path) -> str:
    """The end of a name, which says what a file is and how it is compressed, such as `.jsonl.gz`."""
    return inner_suffix(file) + (file.suffix if file.suffix in PACKED else "")
