"""The rows of a file or folder, whatever holds them: JSON lines, JSON, CSV, TSV, Parquet or Arrow.

What a file is follows from its name without `.gz` or `.zst`, and where that says nothing, from its first bytes.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from chatmill.datasets.formats.example import RawRow, Reject
from chatmill.datasets.formats.row_readers import (
    check_header,
    holds_lines,
    inner_suffix,
    json_rows,
    nonblank_lines,
    start_of,
    table_rows,
    whole_json,
)

_TEXTS = (".txt", ".text", ".md")
_SEPARATED = (".csv", ".tsv")
_ARROW = (".arrow", ".feather")
_BATCH_ROWS = 256  # of a Parquet or Arrow file, as Python objects at a time
_BUFFER_BYTES = 1 << 20  # of each column, which is else read as a whole before its first value
_SIGNATURES = {b"PAR1": ".parquet", b"ARROW1": ".arrow"}


def files_of(path: Path, patterns: Iterable[str] = ("*",)) -> list[Path]:
    """The file itself, or those of a folder and the folders in it that match, in the order of their names.

    A pattern without a slash matches the name of a file in any folder. Hidden files, those in hidden folders, and those
    of DVC are left out. Raises ValueError where none is left.
    """
    if not path.is_dir():
        return [path]
    found = set[Path]()
    for pattern in patterns:
        try:
            found.update(path.glob(pattern if "/" in pattern else f"**/{pattern}"))
        except (ValueError, NotImplementedError) as error:
            raise ValueError(
                f"files: {pattern!r}: expected a pattern of paths in the folder {path}: {error}"
            ) from error
    files = [file for file in found if file.is_file() and file.suffix != ".dvc"]
    files = [file for file in files if not any(name.startswith(".") for name in file.relative_to(path).parts)]
    if not files:
        raise ValueError(f"{path}: no file matches {', '.join(patterns)}: add some, or change files")
    return sorted(files, key=lambda file: file.relative_to(path).as_posix())


def rows_of(file: Path, columns: Iterable[str] = ()) -> Iterator[RawRow | Reject]:
    """The rows of a file; of a Parquet file only the columns, if there are some. Raises ValueError for no table."""
    names = {key for column in columns for key in (column, column.partition(".")[0]) if key}
    return nonblank_lines(file) if kind_of(file) in _TEXTS else _rows(file, names)


def entries_of(file: Path, columns: Iterable[str] = ()) -> Iterator[RawRow | Reject]:
    """The rows of a file of a format whose rows are objects, which is JSON where its name does not say otherwise.

    By the columns a row is known in a JSON object. JSON lines are Unparsed.
    """
    return _rows(file, {*columns} if kind_of(file) == ".json" else set(), parsed=False)


def is_table(file: Path) -> bool:
    """Whether the name of a file says that it has rows."""
    return inner_suffix(file).lower() in (".json", ".jsonl", ".ndjson", ".parquet", *_SEPARATED, *_ARROW)


def kind_of(file: Path) -> str:
    """What a file is, as the suffix of such a file."""
    start = start_of(file)
    by_name = inner_suffix(file).lower()
    return next((found for signature, found in _SIGNATURES.items() if start.startswith(signature)), by_name)


def _rows(file: Path, columns: set[str], *, parsed: bool = True) -> Iterator[RawRow | Reject]:
    kind = kind_of(file)
    if kind in _SEPARATED:
        return table_rows(file, lower_case=False)
    if kind == ".parquet":
        return _parquet_rows(file, columns)
    if kind in _ARROW:
        return _arrow_rows(file)
    return (object_rows(file, columns) if kind == ".json" else None) or json_rows(file, parsed=parsed)


@contextmanager
def pyarrow_errors(file: Path, kind: str) -> Iterator[None]:
    """Raises ValueError where pyarrow is missing, or cannot read the file."""
    try:
        import pyarrow
    except ModuleNotFoundError as error:
        raise ValueError(f"{file}: needs an extra: pip install 'chatmill[tables]'") from error
    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise ValueError(f"{file}: damaged, or not {kind} file: {' '.join(str(error).split())}") from error


def _parquet_rows(file: Path, columns: set[str]) -> Iterator[RawRow]:
    with pyarrow_errors(file, "a Parquet"):
        from pyarrow import parquet

        with parquet.ParquetFile(file, buffer_size=_BUFFER_BYTES) as table:
            there = table.schema_arrow.names
            names = [name for name in there if name in columns]
            if not columns or any(column not in there and column.partition(".")[0] not in there for column in columns):
                names = there  # of a row without a column, all others are told
            yield from _numbered(file, there, table.iter_batches(batch_size=_BATCH_ROWS, columns=names))


def _arrow_rows(file: Path) -> Iterator[RawRow]:
    """The rows of an Arrow file, which is Feather 2, or of an Arrow stream, which `datasets` writes."""
    with pyarrow_errors(file, "an Arrow"):
        from pyarrow import OSFile, ipc

        with OSFile(str(file)) as source:
            is_file = source.read(6) == b"ARROW1"
            source.seek(0)
            table = ipc.open_file(source) if is_file else ipc.open_stream(source)
            batches = map(table.get_batch, range(table.num_record_batches)) if is_file else table
            yield from _numbered(file, table.schema.names, batches)


def _numbered(file: Path, columns: Sequence[str], batches: Iterable[Any]) -> Iterator[RawRow]:
    check_header(str(file), columns)
    number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _BATCH_ROWS):
            try:
                part = batch.slice(start, _BATCH_ROWS)
                part.validate(full=True)  # else offsets in a damaged file may point anywhere
                rows = part.to_pylist()
            except (ValueError, OverflowError) as error:
                problem = f"unreadable value in this row or soon after: {' '.join(str(error).split())}"
                raise ValueError(f"{file}:{number + 1}: {problem}") from error
            for row in map(without_null_arguments, rows) if "arguments" in batch.schema.to_string() else rows:
                number += 1
                yield f"{file}:{number}", row


class Shortened(dict[str, Any]):
    """A row of Arrow without the null arguments of calls, which one schema for all tools gives to each."""


def without_null_arguments(row: dict[str, Any]) -> dict[str, Any]:
    """The row, which is Shortened if it had some."""
    short: dict[str, Any] = _without_nulls(row, within=False)
    return row if short == row else Shortened(short)


def _without_nulls(value: Any, *, within: bool) -> Any:
    if isinstance(value, list):
        return [_without_nulls(item, within=within) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: item for key, item in value.items() if item is not None or not within}
    return {key: _without_nulls(item, within=within or key == "arguments") for key, item in kept.items()}


# The rows of a JSON file that is one object, which holds them by name, or in lists.

_LISTS = {
    "data", "entries", "examples", "instances", "items", "records", "rows", "samples",
    "train", "training", "validation", "valid", "val", "dev", "test", "eval",
}  # fmt: skip
_FIRST = 8  # members of an object, by which it is told what it holds


def object_rows(file: Path, columns: Collection[str] = ()) -> Iterator[RawRow] | None:
    """The rows of a JSON object that holds them by name, or in lists; None for a file that holds something else.

    An object with one of the columns is a row itself, and a list whose first entry has one is a list of rows. Memory
    holds the object.
    """
    if not start_of(file).lstrip().startswith(b"{") or holds_lines(file, "{"):
        return None
    try:
        members = whole_json(file)
    except ValueError:
        return None  # several values, or a broken one, of which the other readers say the place
    names, some = {*columns}, dict(islice(members.items(), _FIRST))
    firsts = {key: value[0] for key, value in some.items() if _may_hold_rows(key, value)}
    known = [key for key, first in firsts.items() if isinstance(first, dict) and names & first.keys()]
    decisive = next((key for key in some if key in names or key in known), None)
    if decisive in names:
        return None
    # rows by the name of their list, or as they have a list of their own
    are_rows = [key in _LISTS or any(isinstance(one, list) for one in first.values()) for key, first in firsts.items()]
    if decisive or (firsts and all(are_rows)):
        lists = ((key, value) for key, value in members.items() if _may_hold_rows(key, value))
        return ((f"{file}: entry {n} of {key}", row) for key, rows in lists for n, row in enumerate(rows, start=1))
    if _are_rows(list(some.values()), names):
        return ((f"{file}: {key!r:.60}", row) for key, row in members.items())
    return None


def _may_hold_rows(key: str, value: Any) -> bool:
    """Whether a value is a list that begins with an object, or with a list where it is named as one of rows."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) or (key in _LISTS and isinstance(first, list))


def _are_rows(values: list[Any], columns: set[str]) -> bool:
    """Whether all are objects, or lists that begin with one, and one has a column or the first two share a key."""
    firsts = [value[0] if isinstance(value, list) and value else value for value in values]
    if len({type(value) for value in values}) > 1 or not all(isinstance(first, dict) for first in firsts):
        return False
    share_a_key = len(firsts) > 1 and bool(firsts[0].keys() & firsts[1].keys())
    return share_a_key or any(first.keys() & columns for first in firsts)
