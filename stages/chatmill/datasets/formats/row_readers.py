"""Readers of rows: lines, paragraphs, JSON and tables, compressed as .gz or .zst or not."""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import zstandard

from chatmill.datasets.formats.example import RawRow, Reject, UnusableRowError
from chatmill.datasets.formats.json_document import array_entries, parse_json, values

PACKED = {".gz": "gzip", ".zst": "zstd"}  # suffixes of names
_PACKED_BYTES = 1 << 10  # that are unpacked at once: a block of 4 bytes may hold 128 KiB


def inner_suffix(file: Path) -> str:
    """The last suffix of a name that does not say how the file is compressed; empty if there is none."""
    return next((suffix for suffix in reversed(file.suffixes) if suffix not in PACKED), "")


@contextmanager
def open_decompressed(file: Path) -> Iterator[io.BufferedReader]:
    """The bytes of a file, unpacked if its name ends in .gz or .zst.

    Raises ValueError for a damaged file, and for text that begins with the mark of UTF-16.
    """
    with file.open("rb") as packed:
        try:
            stream = packed
            if file.suffix in PACKED:
                raw = gzip.GzipFile(fileobj=packed) if file.suffix == ".gz" else _Zstandard(packed)
                stream = io.BufferedReader(raw, 1 << 20)
            if stream.peek(2)[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise ValueError(f"{file}: UTF-16: convert it to UTF-8, as by iconv -f utf-16 -t utf-8")
            yield stream
        except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
            place = f"{error}, near byte {packed.tell():,}"
            raise ValueError(f"{file}: damaged, or not a {file.suffix} file: {place}") from error


class _Zstandard(io.RawIOBase):
    """The bytes of a .zst file; the reader of zstandard would take a truncated file for a complete one."""

    def __init__(self, packed: io.BufferedReader) -> None:
        self._packed = packed
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._within_frame = False
        self._ready = io.BytesIO()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not (count := self._ready.readinto(buffer)):
            data = self._frame.unused_data or self._packed.read(_PACKED_BYTES)
            if not data and self._within_frame:
                raise EOFError("truncated within a frame")
            if not data:
                return 0
            if self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._ready = io.BytesIO(self._frame.decompress(data))
            self._within_frame = not self._frame.eof
        return count


MAX_ROW_BYTES = 16_000_000
_BOM = b"\xef\xbb\xbf"


def start_of(file: Path) -> bytes:
    """The first bytes of a file, decompressed, without a mark of UTF-8."""
    with open_decompressed(file) as stream:
        return stream.read(1 << 12).removeprefix(_BOM)


def lines(file: Path) -> Iterator[RawRow | Reject]:
    """The lines of a file, without LF or CRLF; a reject for each that is too long or not UTF-8."""
    with open_decompressed(file) as stream:
        number, offset = 0, 0
        while line := stream.readline(MAX_ROW_BYTES):
            number, start = number + 1, offset
            offset += len(line)
            place = f"{file}:{number}"
            if len(line) == MAX_ROW_BYTES and not line.endswith(b"\n"):
                while (rest := stream.readline(MAX_ROW_BYTES)) and not rest.endswith(b"\n"):
                    offset += len(rest)
                offset += len(rest)
                yield Reject(place, "too_long", f"line longer than {MAX_ROW_BYTES:,} bytes")
                continue
            begin = len(_BOM) if number == 1 and line.startswith(_BOM) else 0
            try:
                yield place, line[begin:].decode().removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError as error:
                yield Reject(place, "not_utf8", f"not UTF-8 at byte {start + begin + error.start} of the file")


def nonblank_lines(file: Path) -> Iterator[RawRow | Reject]:
    return (row for row in lines(file) if isinstance(row, Reject) or row[1].strip())


def paragraphs(file: Path, is_end: Callable[[str], Any] = lambda line: not line.strip()) -> Iterator[RawRow | Reject]:
    """Groups of lines between blank lines, joined by newlines; one with an unreadable line is one reject."""
    place, block = "", io.StringIO()  # takes less memory than many short lines
    unreadable: Reject | None = None
    for row in chain(lines(file), [None]):
        if isinstance(row, Reject):
            unreadable = unreadable or row
        elif row is not None and not is_end(row[1]):
            place = place or row[0]
            if block.tell() + len(row[1]) >= MAX_ROW_BYTES:
                problem = f"paragraph longer than {MAX_ROW_BYTES:,} characters"
                unreadable = unreadable or Reject(place, "too_long", problem)
            if unreadable is None:
                block.write(f"{row[1]}\n")
        else:
            if unreadable or place:
                yield unreadable or (place, block.getvalue().removesuffix("\n"))
            place, block, unreadable = "", io.StringIO(), None


_JSON = re.compile(rb'\s*(?:(?:\[\s*)*\{\s*"(?:[^"\\\n]|\\.)*"\s*:|\[\s*\[\s*")')


def check_is_text(file: Path, remedy: str) -> None:
    """Raise ValueError for a file that begins as objects or arrays of JSON do."""
    if _JSON.match(start_of(file)):
        raise ValueError(f"{file}:1: JSON, not text: {remedy}")


class Unparsed(str):
    """A line of JSON, as of a row that another process converts."""

    def value(self) -> Any:
        """Raises UnusableRowError."""
        try:
            return parse_json(self)
        except ValueError as error:
            raise UnusableRowError("bad_json", f"not JSON: {error}") from error


def json_rows(file: Path, *, parsed: bool = True) -> Iterator[RawRow | Reject]:
    """The values of JSON lines, the entries of a JSON array, or concatenated objects of several lines.

    The lines of JSON lines are Unparsed if they are not to be `parsed`.
    """
    start = start_of(file).lstrip()
    is_array = start.startswith(b"[") and not holds_lines(file, "[")
    if is_array or start.startswith((b"{\n", b"{\r\n")):
        with open_decompressed(file) as stream:
            yield from (array_entries if is_array else values)(file, stream, MAX_ROW_BYTES)
        return
    read = json_row if parsed else lambda place, line: (place, Unparsed(line))
    yield from (row if isinstance(row, Reject) else read(*row) for row in nonblank_lines(file))


def whole_json(file: Path) -> Any:
    """The value of a file, which memory holds. Raises ValueError."""
    with open_decompressed(file) as stream:
        try:
            return parse_json(stream.read().decode("utf-8-sig"))
        except ValueError as error:
            raise ValueError(f"{file}: not JSON: {error}") from error


def holds_lines(file: Path, mark: str) -> bool:
    """Whether a file that begins with [ or { is JSON lines, of which each begins so, and not one value."""
    texts = [row[1] for row in islice((row for row in nonblank_lines(file) if not isinstance(row, Reject)), 2)]
    is_first = len(texts) == 2 and all(text.lstrip().startswith(mark) for text in texts)
    return is_first and not isinstance(json_row("", texts[0]), Reject)


def json_row(place: str, line: str) -> RawRow | Reject:
    try:
        return place, Unparsed(line).value()
    except UnusableRowError as error:
        return error.reject(place)


# Tables: values separated by commas or other marks, in rows under a header.

_SEPARATORS = ",;\t|"
_SEPARATOR_LINE = re.compile(rb'(?i)"?sep=([,;|\t])"?[ \t]*\r?(?:\n|\Z)')  # of spreadsheets, before the header
_QUOTED = re.compile(rb'"[^"]*"')
_UNQUOTED = "a cell that begins with a quotation mark does not end with one, or has one inside that is not doubled"


def table_rows(file: Path, *, lower_case: bool = True) -> Iterator[RawRow | Reject]:
    """The rows of a table as dicts by its header."""
    csv.field_size_limit(MAX_ROW_BYTES)
    with open_decompressed(file) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
        reader = csv.reader(_table_lines(file, text), delimiter=separator_of(file), strict=True)
        if _SEPARATOR_LINE.match(start_of(file)):
            next(reader)
        header: list[str] = []
        while True:
            line = reader.line_num + 1
            place = f"{file}:{line}"
            try:
                cells = next(reader, None)
            except csv.Error as error:
                is_long = "field larger" in str(error)  # where the next row begins is not known
                if is_long or not header:
                    problem = f"row longer than {MAX_ROW_BYTES:,} characters" if is_long else _UNQUOTED
                    raise ValueError(f"{place}: not a table: {problem}") from error
                yield from (Reject(f"{file}:{n}", "bad_row", _UNQUOTED) for n in range(line, reader.line_num + 1))
                continue
            if cells is None:
                return
            if not header:
                header = [cell.strip() or f"column {number}" for number, cell in enumerate(cells, start=1)]
                header = [name.lower() if lower_case else name for name in header]
                check_header(place, header)
            elif len(cells) > len(header):
                yield Reject(place, "bad_row", f"expected at most {len(header)} cells, got {len(cells)}")
            elif any(cells):
                yield place, dict(zip(header, cells, strict=False))


def _table_lines(file: Path, text: io.TextIOWrapper) -> Iterator[str]:
    for number, line in enumerate(iter(lambda: text.readline(MAX_ROW_BYTES + 1), ""), start=1):
        if len(line) > MAX_ROW_BYTES:
            raise ValueError(f"{file}:{number}: not a table: row longer than {MAX_ROW_BYTES:,} characters")
        yield line


def check_header(place: str, names: Sequence[str]) -> None:
    """Raise ValueError where two columns have one name, of which one would get lost."""
    twice = next((name for number, name in enumerate(names) if name and name in names[:number]), None)
    if twice is not None:
        raise ValueError(f"{place}: two columns called {twice[:40]!r}: rename one of them")
    try:
        "".join(names).encode()
    except UnicodeEncodeError as error:
        file = place.rpartition(":")[0]
        raise ValueError(f"{file}: its header is not UTF-8: convert it, as by iconv -f cp1252 -t utf-8") from error


def separator_of(file: Path) -> str:
    """What separates the cells of a table: what its first line says, or tabs in a .tsv, or the most frequent of `,;⇥|`
    in its header."""
    start = start_of(file)
    if said := _SEPARATOR_LINE.match(start):
        return said[1].decode()
    header = _QUOTED.sub(b"", start.partition(b"\n")[0])
    return "\t" if ".tsv" in file.suffixes else max(_SEPARATORS, key=lambda mark: header.count(mark.encode()))
