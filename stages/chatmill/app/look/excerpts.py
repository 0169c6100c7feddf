"""Parts of large files: copies of some rows from the middle and from the end, which any reader reads."""

import csv
import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from chatmill.app.look.file_kinds import PACKED, last_suffix

PART_ENTRIES = 150  # of each other part
_PART_BYTES = 400_000  # from the middle and from the end
_SEEK_BYTES = 3_000_000  # files that are smaller are read from the beginning alone
_ROWS_TO_ALIGN = 20  # of a table, by which it is seen whether a line begins a row


class Part(NamedTuple):
    """A part of a file: the file that holds it, and where it is from."""

    file: Path
    origin: Path
    where: str = "the beginning"


def parts_of(file: Path, kind: str, scratch: Path, *, alone: bool) -> Iterator[Part]:
    """The parts of a file that are looked at; from the middle and the end only if it is the one file, and large."""
    yield Part(file, file)
    if not alone or file.stat().st_size < _SEEK_BYTES or file.suffix in PACKED:
        return
    if kind.startswith(("JSON lines", "CSV", "TSV", "plain text")):
        yield from _line_parts(file, kind, scratch)
    elif kind in ("Parquet", "Arrow"):
        yield from _table_parts(file, kind, scratch)


def _line_parts(file: Path, kind: str, scratch: Path) -> Iterator[Part]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        header = stream.readline() if kind.startswith(("CSV", "TSV")) else b""
        for where, start in (("the middle", size // 2), ("the end", size - _PART_BYTES)):
            stream.seek(start)
            stream.readline()
            block = stream.read() if where == "the end" else stream.read(_PART_BYTES)
            whole = block if where == "the end" else block[: block.rfind(b"\n") + 1]
            if whole.strip():
                copy = scratch / f"{where.split()[1]}{last_suffix(file)}"
                copy.write_bytes(_table(header, whole, where) if header else whole)
                yield Part(copy, file, where)


def _table(header: bytes, block: bytes, where: str) -> bytes:
    """The complete rows of a block of a table, with its header; the last one of the file is complete."""
    head = header.decode("utf-8-sig", "surrogateescape")
    mark = max(",;\t|", key=head.count)
    cells = len(next(csv.reader([head], delimiter=mark)))
    lines = block.decode("utf-8", "surrogateescape").splitlines(keepends=True)

    def complete(start: int) -> int:
        """How many of the next rows have as many cells as the header, if one starts at this line."""
        return sum(len(row) == cells for row in islice(csv.reader(lines[start:], delimiter=mark), _ROWS_TO_ALIGN))

    start = max(range(min(_ROWS_TO_ALIGN, len(lines))), key=complete)
    rows = list(csv.reader(lines[start:], delimiter=mark))
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=mark).writerows(rows if where == "the end" else rows[:-1])
    return header + out.getvalue().encode("utf-8", "surrogateescape")


def _table_parts(file: Path, kind: str, scratch: Path) -> Iterator[Part]:
    try:
        import pyarrow
        from pyarrow import ipc, parquet
    except ModuleNotFoundError:
        return  # the reader of rows says what is missing

    def write(where: str, batch: Any) -> Part:
        copy = scratch / f"{where.split()[1]}.parquet"
        parquet.write_table(pyarrow.Table.from_batches([batch.slice(0, PART_ENTRIES)]), copy)
        return Part(copy, file, where)

    try:
        if kind == "Parquet":
            with parquet.ParquetFile(file, buffer_size=1 << 20) as table:
                last = table.num_row_groups - 1
                for where, group in (("the middle", last // 2), ("the end", last)):
                    if group > 0:
                        yield write(where, next(table.iter_batches(batch_size=PART_ENTRIES, row_groups=[group])))
        else:
            with pyarrow.OSFile(str(file)) as source:
                if source.read(6) == b"ARROW1":
                    batches = ipc.open_file(source)
                    last = batches.num_record_batches - 1
                    for where, number in (("the middle", last // 2), ("the end", last)):
                        if number > 0:
                            yield write(where, batches.get_batch(number))
    except (pyarrow.ArrowException, StopIteration) as error:
        raise ValueError(f"{file}: damaged, or not {kind}: {error}") from error
