"""The rows of a file or folder, whatever holds them: JSON lines, JSON, CSV, TSV, Parquet or Arrow.

What a file is follows from its name without `.gz` or `.zst`, and where that says nothing, from its first bytes.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from chatmill.datasets.formats.compression import inner_suffix, open_decompressed
from chatmill.datasets.formats.example import RawRow, Reject
from chatmill.datasets.formats.object_rows import object_rows
from chatmill.datasets.formats.row_readers import check_header, json_rows, nonblank_lines, table_rows
from chatmill.pipeline.parts import PART_LIST

_TEXTS = (".txt", ".text", ".md")
_JSON = (".json", ".jsonl", ".ndjson")
_SEPARATED = (".csv", ".tsv")
_ARROW = (".arrow", ".feather")
_BATCH_ROWS = 256  # of a Parquet or Arrow file, as Python objects at a time
_BUFFER_BYTES = 1 << 20  # of each column, which is else read as a whole before its first value
_SIGNATURES = {b"PAR1": ".parquet", b"ARROW1": ".arrow"}


def files_of(path: Path, patterns: Iterable[str] = ("*",)) -> list[Path]:
    """The file itself, or those of a folder and the folders in it that match, in the order of their names.

    The folder of a file in parts counts as that file. A pattern without a slash matches the name of a file in any
    folder. Hidden files, those in hidden folders, and those of DVC are left out.
    Raises ValueError where none is left.
    """
    if not path.is_dir() or (path / PART_LIST).exists():
        return [path]
    found = {file for pattern in patterns for file in _matching(path, pattern)}
    files = [file for file in found if file.is_file() and file.suffix != ".dvc" and not _is_hidden(file, path)]
    if not files:
        raise ValueError(f"{path}: no file matches {', '.join(patterns)}: add some, or change files")
    return sorted(files, key=lambda file: file.relative_to(path).as_posix())


def _matching(folder: Path, pattern: str) -> list[Path]:
    try:
        return list(folder.glob(pattern if "/" in pattern else f"**/{pattern}"))
    except (ValueError, NotImplementedError) as error:
        raise ValueError(f"files: {pattern!r}: expected a pattern of paths in the folder {folder}: {error}") from error


def _is_hidden(file: Path, folder: Path) -> bool:
    return any(name.startswith(".") for name in file.relative_to(folder).parts)


def rows_of(path: Path, patterns: Iterable[str] = ("*",), columns: Iterable[str] = ()) -> Iterator[RawRow | Reject]:
    """The rows of a file, or of the matching files of a folder; of Parquet files only the columns, if there are some.

    Raises ValueError for a file that is no table.
    """
    names = {key for column in columns for key in (column, column.partition(".")[0]) if key}
    for file in files_of(path, patterns):
        yield from _rows(file, names)


def entries_of(file: Path) -> Iterator[RawRow | Reject]:
    """The rows of a file of a format whose rows are objects, which is JSON where its name does not say otherwise.

    JSON lines are Unparsed.
    """
    return json_rows(file, parsed=False) if _kind(file) in _TEXTS else _rows(file, set(), parsed=False)


def is_table(file: Path) -> bool:
    """Whether the name of a file says that it has rows."""
    return inner_suffix(file).lower() in (*_JSON, *_SEPARATED, ".parquet", *_ARROW)


def _kind(file: Path) -> str:
    kind = inner_suffix(file).lower()
    with open_decompressed(file) as stream:
        start = stream.read(8)
    return next((found for signature, found in _SIGNATURES.items() if start.startswith(signature)), kind)


def _rows(file: Path, columns: set[str], *, parsed: bool = True) -> Iterator[RawRow | Reject]:
    kind = _kind(file)
    if kind in _SEPARATED:
        return table_rows(file, lower_case=False)
    if kind == ".parquet":
        return _parquet_rows(file, columns)
    if kind in _ARROW:
        return _arrow_rows(file)
    if kind in _TEXTS:
        return nonblank_lines(file)
    return (object_rows(file, columns) if kind == ".json" else None) or json_rows(file, parsed=parsed)


def _parquet_rows(file: Path, columns: set[str]) -> Iterator[RawRow]:
    """The rows of a Parquet file, of which memory holds some pages."""
    _require_pyarrow(file)
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file, buffer_size=_BUFFER_BYTES) as table:
            there = table.schema_arrow.names
            check_header(str(file), there)
            names = [name for name in there if name in columns]
            if not columns or any(column not in there and column.partition(".")[0] not in there for column in columns):
                names = there  # of a row without a column, all others are told
            yield from _numbered(file, table.iter_batches(batch_size=_BATCH_ROWS, columns=names))
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise ValueError(f"{file}: damaged, or not a Parquet file: {error}") from error


def _arrow_rows(file: Path) -> Iterator[RawRow]:
    """The rows of an Arrow file, which is Feather 2, or of an Arrow stream, which `datasets` writes."""
    _require_pyarrow(file)
    import pyarrow
    from pyarrow import ipc

    try:
        with pyarrow.OSFile(str(file)) as source:
            if source.read(6) == b"ARROW1":
                table = ipc.open_file(source)
                check_header(str(file), table.schema.names)
                yield from _numbered(file, (table.get_batch(index) for index in range(table.num_record_batches)))
            else:
                source.seek(0)
                stream = ipc.open_stream(source)
                check_header(str(file), stream.schema.names)
                yield from _numbered(file, stream)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise ValueError(f"{file}: damaged, or not an Arrow file: {error}") from error


def _numbered(file: Path, batches: Iterable[Any]) -> Iterator[RawRow]:
    number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _BATCH_ROWS):
            try:
                part = batch.slice(start, _BATCH_ROWS)
                part.validate(full=True)  # else offsets in a damaged file may point anywhere
                rows = part.to_pylist()
            except (ValueError, OverflowError) as error:
                raise ValueError(f"{file}:{number + 1}: unreadable value in this row or soon after: {error}") from error
            for row in rows:
                number += 1
                yield f"{file}:{number}", row


def _require_pyarrow(file: Path) -> None:
    try:
        import pyarrow  # noqa: F401
    except ModuleNotFoundError as error:
        raise ValueError(f"{file}: needs an extra: pip install 'chatmill[tables]'") from error
