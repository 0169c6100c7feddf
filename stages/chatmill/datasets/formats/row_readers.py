"""Files as rows: lines, blocks of lines, JSON and tables, packed or not.

Every reader streams: it holds one row in memory, and no row may be longer than `MAX_ROW_BYTES`. A row that cannot be
read is a `Reject`; a file that cannot be read is a ValueError or an OSError.
"""

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import zstandard
from pydantic_core import from_json

from chatmill.datasets.formats.example import RawRow, Reject
from chatmill.datasets.formats.json_document import entries, values

MAX_ROW_BYTES = 16_000_000
_BOM = b"\xef\xbb\xbf"


def lines(file: Path) -> Iterator[RawRow | Reject]:
    """The lines that are not blank, without their ends; line ends are LF or CRLF."""
    with open_decompressed(file) as stream:
        number, offset = 0, 0
        while line := stream.readline(MAX_ROW_BYTES):
            number, start = number + 1, offset
            offset += len(line)
            place = f"{file}:{number}"
            if len(line) == MAX_ROW_BYTES and not line.endswith(b"\n"):
                offset += _skip_line(stream)
                yield Reject(place, "too_long", f"a line longer than {MAX_ROW_BYTES:,} bytes")
                continue
            try:
                text = (line.removeprefix(_BOM) if number == 1 else line).decode()
            except UnicodeDecodeError as error:
                at = start + error.start + (len(_BOM) if number == 1 and line.startswith(_BOM) else 0)
                yield Reject(place, "not_utf8", f"not UTF-8 at byte {at} of the file")
                continue
            yield place, text.removesuffix("\n").removesuffix("\r")


def _skip_line(stream: io.BufferedIOBase) -> int:
    """Read on to the end of a line; how many bytes that was."""
    skipped = 0
    while rest := stream.readline(MAX_ROW_BYTES):
        skipped += len(rest)
        if rest.endswith(b"\n"):
            break
    return skipped


def nonblank_lines(file: Path) -> Iterator[RawRow | Reject]:
    """The lines that hold more than blanks."""
    return (row for row in lines(file) if isinstance(row, Reject) or row[1].strip())


def paragraphs(file: Path) -> Iterator[RawRow | Reject]:
    """Lines up to the next blank one, joined by newlines; a block with an unreadable line is one reject."""
    place, size = "", 0
    block: list[str] = []
    unreadable: Reject | None = None
    for row in chain(lines(file), [("", "")]):
        if isinstance(row, Reject):
            unreadable = unreadable or row
        elif row[1].strip():
            place = place or row[0]
            size += len(row[1])
            if size > MAX_ROW_BYTES:
                block.clear()
                unreadable = unreadable or Reject(place, "too_long", f"lines of more than {MAX_ROW_BYTES:,} characters")
            else:
                block.append(row[1])
        else:
            if unreadable or block:
                yield unreadable or (place, "\n".join(block))
            place, block, size, unreadable = "", [], 0, None


def json_rows(file: Path) -> Iterator[RawRow | Reject]:
    """The values of a file of JSON lines, the entries of one JSON array, or objects that go over several lines."""
    with open_decompressed(file) as stream:
        start = stream.read(4096).removeprefix(_BOM).lstrip()
    if start.startswith(b"["):
        yield from ((place, value) for place, _, value in json_entries(file))
    elif start.startswith((b"{\n", b"{\r\n")):
        with open_decompressed(file) as stream:
            yield from values(file, stream, MAX_ROW_BYTES)
    else:
        yield from (row if isinstance(row, Reject) else _json_row(*row) for row in nonblank_lines(file))


def _json_row(place: str, line: str) -> RawRow | Reject:
    try:
        return place, from_json(line)
    except ValueError as error:
        return Reject(place, "bad_json", f"not JSON: {error}")


def json_entries(file: Path) -> Iterator[tuple[str, str | None, Any]]:
    """Place, key and value of each entry of a JSON object; of an array the keys are None."""
    with open_decompressed(file) as stream:
        yield from entries(file, stream, MAX_ROW_BYTES)


def table_rows(file: Path) -> Iterator[RawRow | Reject]:
    """The rows of a table as dicts by its header in lower case; tabs separate in a .tsv, commas elsewhere."""
    tabs = ".tsv" in file.suffixes
    csv.field_size_limit(MAX_ROW_BYTES)
    with open_decompressed(file) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
        reader = csv.reader(text, delimiter="\t" if tabs else ",")
        header: list[str] = []
        while True:
            place = f"{file}:{reader.line_num + 1}"
            try:
                cells = next(reader, None)
            except csv.Error as error:
                raise ValueError(f"{file}:{reader.line_num}: not a table: {error}") from error
            if cells is None:
                return
            if not header:
                header = [cell.strip().lower() for cell in cells]
            elif len(cells) > len(header):
                yield Reject(place, "bad_row", f"{len(cells)} cells under {len(header)} columns")
            elif any(cells):
                yield place, dict(zip(header, cells, strict=False))


@contextmanager
def open_decompressed(file: Path) -> Iterator[io.BufferedReader | gzip.GzipFile]:
    """The bytes of a file, unpacked where it ends in .gz or .zst. Raises ValueError where a packed file is damaged."""
    try:
        with file.open("rb") as packed:
            if file.suffix == ".gz":
                yield gzip.GzipFile(fileobj=packed)
            elif file.suffix == ".zst":
                yield io.BufferedReader(_Zstandard(packed), 1 << 20)
            else:
                yield packed
    except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        raise ValueError(f"{file}: damaged, or not packed as its name says: {error}") from error


class _Zstandard(io.RawIOBase):
    """Unpacked bytes; unlike zstandard's own reader it raises EOFError where the file ends too early."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._started = False
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self._frame.unused_data or self._packed.read(1 << 16)
            if self._frame.eof:
                self._frame, self._started = zstandard.ZstdDecompressor().decompressobj(), False
            if not data:
                if self._started:
                    raise EOFError("it ends in the middle of a frame")
                return 0
            self._ready, self._started = self._frame.decompress(data), True
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count
