"""Excerpts of large files: copies of some rows from the middle and from the end, which any reader reads."""

import csv
import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from chatmill.app.look.file_kinds import Container, FileKind
from chatmill.datasets.formats.row_readers import PACKED, inner_suffix, separator_of
from chatmill.pipeline.parts import open_parts, size_of

BEGINNING, MIDDLE, END = "the beginning", "the middle", "the end"
COPIED_ENTRIES = 150  # from the middle and from the end
_COPIED_BYTES = 400_000
_SEEK_BYTES = 3_000_000  # files that are smaller are read from the beginning alone
_ROWS_TO_ALIGN = 20  # of a table, by which it is seen whether a line begins a row


class Excerpt(NamedTuple):
    """An excerpt of a file: the file that holds it, which may be a copy, and where it is from."""

    file: Path
    origin: Path
    where: str = BEGINNING


def excerpts_of(file: Path, kind: FileKind, scratch: Path, *, is_single: bool) -> Iterator[Excerpt]:
    """The excerpts of a file; from the middle and the end only if it is the one file, and large."""
    yield Excerpt(file, file)
    if not is_single or size_of(file) < _SEEK_BYTES or file.suffix in PACKED:
        return
    if kind.has_header or kind.container in (Container.JSON_LINES, Container.TEXT):
        yield from _lines(file, kind, scratch)
    elif kind.container in (Container.PARQUET, Container.ARROW):
        yield from _batches(file, kind, scratch)


def _lines(file: Path, kind: FileKind, scratch: Path) -> Iterator[Excerpt]:
    size = size_of(file)
    with open_parts(file) as stream:
        header = stream.readline() if kind.has_header else b""
        for where, start in ((MIDDLE, size // 2), (END, size - _COPIED_BYTES)):
            stream.seek(start)
            stream.readline()
            block = stream.read() if where == END else stream.read(_COPIED_BYTES)
            whole = block if where == END else block[: block.rfind(b"\n") + 1]
            if whole.strip():
                copy = scratch / f"{where.split()[1]}{inner_suffix(file)}"
                copy.write_bytes(_table(header, whole, separator_of(file), where) if header else whole)
                yield Excerpt(copy, file, where)


def _table(header: bytes, block: bytes, separator: str, where: str) -> bytes:
    """The complete rows of a block of a table, with its header; the last one of the file is complete."""
    cells = len(next(csv.reader([header.decode("utf-8-sig", "surrogateescape")], delimiter=separator)))
    lines = block.decode("utf-8", "surrogateescape").splitlines(keepends=True)

    def complete(start: int) -> int:
        """How many of the next rows have as many cells as the header, if one starts at this line."""
        return sum(len(row) == cells for row in islice(csv.reader(lines[start:], delimiter=separator), _ROWS_TO_ALIGN))

    start = max(range(min(_ROWS_TO_ALIGN, len(lines))), key=complete)
    rows = list(csv.reader(lines[start:], delimiter=separator))
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=separator).writerows(rows if where == END else rows[:-1])
    return header + out.getvalue().encode("utf-8", "surrogateescape")


def _batches(file: Path, kind: FileKind, scratch: Path) -> Iterator[Excerpt]:
    try:
        import pyarrow
        from pyarrow import ipc, parquet
    except ModuleNotFoundError:
        return  # the reader of rows says what is missing

    def excerpt(where: str, batch: Any) -> Excerpt:
        copy = scratch / f"{where.split()[1]}.parquet"
        parquet.write_table(pyarrow.Table.from_batches([batch.slice(0, COPIED_ENTRIES)]), copy)
        return Excerpt(copy, file, where)

    def later(count: int) -> Iterator[tuple[str, int]]:
        """The indices of groups of rows in the middle and at the end, but for the first."""
        return ((where, index) for where, index in ((MIDDLE, (count - 1) // 2), (END, count - 1)) if index > 0)

    try:
        if kind.container == Container.PARQUET:
            with parquet.ParquetFile(file, buffer_size=1 << 20) as table:
                for where, index in later(table.num_row_groups):
                    yield excerpt(where, next(table.iter_batches(batch_size=COPIED_ENTRIES, row_groups=[index])))
        else:
            with pyarrow.OSFile(str(file)) as source:
                if source.read(6) == b"ARROW1":
                    batches = ipc.open_file(source)
                    for where, index in later(batches.num_record_batches):
                        yield excerpt(where, batches.get_batch(index))
    except (pyarrow.ArrowException, StopIteration) as error:
        raise ValueError(f"{file}: damaged, or not {kind}: {error}") from error
