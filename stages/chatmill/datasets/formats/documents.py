"""Documents: text without roles, which a model learns to continue.

A text or Markdown file is one document; of a table, each row is one, by its column `text` or the one that is named:

    format: documents
    columns: {text: body}

A long document is divided between paragraphs; all of its parts are on the same side of the split.
"""

import codecs
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from chatmill.datasets.formats.containers import files_of, is_table, rows_of
from chatmill.datasets.formats.example import Document, RawRow, Reject, UnusableRowError, describe_value
from chatmill.datasets.formats.mapping import Columns, TableMapping, value_at
from chatmill.datasets.formats.row_readers import check_is_text, open_decompressed
from chatmill.datasets.split import column_group, document_group

Items = Iterator[Document | Reject]

MAX_CHARACTERS = 100_000  # of a part
_BLOCK = 1 << 16  # bytes that are read at once
_BORDERS = ("\n\n", "\n", " ")  # between parts, the best first


def read_documents(path: Path, patterns: Iterable[str] = ("*",), mapping: TableMapping | None = None) -> Items:
    """The documents of a file, or of the matching files of a folder. Raises ValueError for JSON named as text."""
    for file in files_of(path, patterns):
        is_rows = is_table(file)
        yield from document_rows(rows_of(file, _columns(mapping)), mapping) if is_rows else _text_file(file)


def document_rows(rows: Iterable[RawRow | Reject], mapping: TableMapping | None = None) -> Items:
    column, *group = _columns(mapping)
    for row in rows:
        if isinstance(row, Reject):
            yield row
            continue
        place, entry = row
        try:
            text, named = value_at(entry, column), next((value_at(entry, name) for name in group), None)
            if not isinstance(text, str):
                raise UnusableRowError("missing_field", f"{column}: expected text, got {describe_value(text)}")
        except UnusableRowError as error:
            yield error.reject(place)
            continue
        parts = list(parts_of([text])) or [""]
        for part in parts:
            yield Document(place, document_group(parts[0]) if named is None else column_group(str(named)), part)


def _columns(mapping: TableMapping | None) -> list[str]:
    """The columns of the text and, if there is one, of the group."""
    columns = mapping.columns if mapping else Columns(text="text")
    if columns.text is None:
        raise ValueError("format documents: expected columns.text, or no columns where it is called text")
    return [columns.text] if columns.group is None else [columns.text, columns.group]


def parts_of(blocks: Iterable[str]) -> Iterator[str]:
    """A text, given in blocks, in parts of at most MAX_CHARACTERS, which are the text when they are joined."""
    rest = ""
    for block in blocks:
        rest, start = rest + block, 0
        while len(rest) - start > MAX_CHARACTERS:
            end = _border(rest, start)
            yield rest[start:end]
            start = end
        rest = rest[start:]
    if rest:
        yield rest


def _border(text: str, start: int) -> int:
    """Where the part that begins at `start` ends: after the last border in the second half of what it may hold."""
    end = start + MAX_CHARACTERS
    for border in _BORDERS:
        if (found := text.rfind(border, start + MAX_CHARACTERS // 2, end)) >= 0:
            return found + len(border)
    return end


def _text_file(file: Path) -> Items:
    """The parts of a file, by the lines where they begin; from a byte that is not UTF-8 on, it is left out."""
    group, line = "", 1
    try:
        for part in parts_of(_blocks(file)):
            group = group or document_group(part)
            yield Document(f"{file}:{line}", group, part)
            line += part.count("\n")
    except UnusableRowError as error:
        yield error.reject(f"{file}:{line}")
    else:
        if not group:
            yield Reject(str(file), "empty_document", "the file is empty")


def _blocks(file: Path) -> Iterator[str]:
    check_is_text(file, "name it .jsonl or .json, so that its rows are read")
    decoder, count = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8-sig")(), translate=True), 0
    with open_decompressed(file) as stream:
        while True:
            count += len(block := stream.read(_BLOCK))
            try:
                yield decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                place = count - len(error.object) + error.start
                raise UnusableRowError("not_utf8", f"not UTF-8 at byte {place} of the file") from error
            if not block:
                return
