"""Tells what a file is, by its name and its first bytes."""

import re
from pathlib import Path

from chatmill.datasets.formats.compression import open_decompressed
from chatmill.datasets.formats.row_readers import separator_of

PACKED = {".gz": "gzip", ".zst": "zstd"}
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_UNREADABLE = {
    b"PK\x03\x04": "a ZIP archive, or a document of an office program: unpack it, or save it as CSV",
    b"%PDF": "a PDF: convert it to text, as by pdftotext",
    b"SQLite": "an SQLite database: export its rows as CSV or JSON lines",
    b"BZh": "compressed by bzip2: unpack it",
    b"\xfd7zXZ": "compressed by xz: unpack it",
    b"\x80\x04": "a Python pickle, which could run code: save its rows as JSON lines",
}


def kind_of(file: Path) -> str:
    """What a file is, in words. Raises ValueError for one that no reader reads."""
    with open_decompressed(file) as stream:
        start = stream.read(1 << 16)
    packed = f", compressed by {PACKED[file.suffix]}" if file.suffix in PACKED else ""
    return f"{_kind(file, start)}{packed}"


def _kind(file: Path, start: bytes) -> str:
    suffix = last_suffix(file).lower()
    if reason := next((reason for mark, reason in _UNREADABLE.items() if start.startswith(mark)), None):
        raise ValueError(f"{file}: {reason}")
    if not start.strip():
        raise ValueError(f"{file}: empty")
    if start.startswith(b"PAR1") or suffix == ".parquet":
        return "Parquet"
    if start.startswith(b"ARROW1") or suffix in (".arrow", ".feather"):
        return "Arrow"
    if b"\x00" in start:
        raise ValueError(f"{file}: binary data that no reader knows")
    if suffix in (".csv", ".tsv"):
        return f"{suffix[1:].upper()}, separated by {_SEPARATORS[separator_of(file)]}"
    if suffix in (".txt", ".text", ".md", ".yaml", ".yml"):
        return {".md": "Markdown", ".yaml": "YAML", ".yml": "YAML"}.get(suffix, "plain text")
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        lines = text.split(b"\n", 2)
        is_lines = len(lines) > 2 and lines[0].rstrip().endswith(b"]") and lines[1].startswith(b"[")
        return "JSON lines" if is_lines else "a JSON array"
    is_line = text.startswith(b"{") and b"\n" not in text.rstrip() and suffix not in (".jsonl", ".ndjson")
    if re.match(rb"\{\s*\r?\n", text) or is_line:
        return _json_objects(file)
    if not text.startswith((b"{", b'"')):
        raise ValueError(
            f"{file}: no JSON, and its name does not say what else: name a table .csv or .tsv, a text .txt"
        )
    return "JSON lines"


def _json_objects(file: Path) -> str:
    """Whether a file that begins with an object of several lines, or is one line, has several of them."""
    with open_decompressed(file) as stream:
        text = stream.read(1 << 20)
    is_several = re.search(rb"\n\}\s*\n?\{", text) is not None
    return "JSON objects" if is_several else "a JSON object"


def last_suffix(file: Path) -> str:
    """The last part of a name that does not say how a file is compressed."""
    return next((suffix for suffix in reversed(file.suffixes) if suffix not in PACKED), "")
