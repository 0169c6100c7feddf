"""Documents: text without roles, which a model learns to continue.

A text or Markdown file is one document; of a table, each row is one, by its column `text` or the one that is named:

    format: documents
    columns: {text: body}

A long document is divided between paragraphs; all of its parts are on the same side of the split.
"""

import codecs
import io
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from chatmill.conversation import Conversation
from chatmill.datasets.formats import chats, containers, skills, talk
from chatmill.datasets.formats.containers import entries_of, files_of, is_table, rows_of
from chatmill.datasets.formats.example import (
    Document,
    Example,
    RawRow,
    Reject,
    UnusableRowError,
    as_turns,
    describe_value,
)
from chatmill.datasets.formats.json_document import parse_json
from chatmill.datasets.formats.mapping import OPTIONAL_IN_MESSAGES, Columns, TableMapping, value_at
from chatmill.datasets.formats.row_readers import (
    UTF_16,
    Unparsed,
    Utf16Error,
    json_row,
    nonblank_lines,
    open_decompressed,
    paragraphs,
    table_rows,
)
from chatmill.datasets.formats.table import TableReader, reader_of
from chatmill.datasets.formats.trees import grow, names_of
from chatmill.datasets.split import column_group, document_group

Items = Iterator[Document | Reject]

MAX_CHARACTERS = 100_000  # of a part
_BLOCK = 1 << 16  # bytes or characters that are read at once
_BORDERS = ("\n\n", "\n", " ")  # between parts, the best first
_JSON = re.compile(r'\s*(?:\[\s*)?\{\s*"(?:[^"\\\n]|\\.)*"\s*:')


def read_documents(path: Path, patterns: Iterable[str] = ("*",), mapping: TableMapping | None = None) -> Items:
    """The documents of a file, or of the matching files of a folder; one in UTF-16 is a reject.

    Raises ValueError for JSON named as text.
    """
    for file in files_of(path, patterns):
        rows = rows_of(file, columns=_columns(mapping)) if is_table(file) else None
        try:
            yield from _text_file(file) if rows is None else document_rows(rows, mapping)
        except Utf16Error:
            yield Reject(str(file), "not_utf8", UTF_16)


def document_rows(rows: Iterable[RawRow | Reject], mapping: TableMapping | None = None) -> Items:
    """The documents of a table's rows."""
    text, *group = _columns(mapping)
    for row in rows:
        if isinstance(row, Reject):
            yield row
            continue
        place, entry = row
        try:
            parts = list(parts_of(_slices(_text(entry, text)))) or [""]
            named = next((value_at(entry, column) for column in group), None)
        except UnusableRowError as error:
            yield Reject(place, error.reason, str(error))
            continue
        for part in parts:
            yield Document(place, document_group(parts[0]) if named is None else column_group(str(named)), part)


def parts_of(blocks: Iterable[str]) -> Iterator[str]:
    """A text, given in blocks, in parts of at most MAX_CHARACTERS, which are the text when they are joined."""
    rest = ""
    for block in blocks:
        rest += block
        while len(rest) > MAX_CHARACTERS:
            end = _border(rest)
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def _border(text: str) -> int:
    """Where the first part of a text ends: after the last border in the second half of what it may hold."""
    for border in _BORDERS:
        if (found := text.rfind(border, MAX_CHARACTERS // 2, MAX_CHARACTERS)) >= 0:
            return found + len(border)
    return MAX_CHARACTERS


def _columns(mapping: TableMapping | None) -> list[str]:
    if mapping is None:
        return ["text"]
    columns = mapping.columns
    if columns.text is None:
        raise ValueError("format documents: expected columns.text, or no columns where it is called text")
    return [columns.text] if columns.group is None else [columns.text, columns.group]


def _text(entry: Any, column: str) -> str:
    value = value_at(entry, column)
    if not isinstance(value, str):
        raise UnusableRowError("missing_field", f"{column}: expected text, got {describe_value(value)}")
    return value


def _slices(text: str) -> Iterator[str]:
    return (text[start : start + _BLOCK] for start in range(0, len(text), _BLOCK))


def _text_file(file: Path) -> Items:
    """The parts of a file, by the lines where they begin; from a byte that is not UTF-8 on, it is left out."""
    group, line = "", 1
    try:
        for part in parts_of(_blocks(file)):
            group = group or document_group(part)
            yield Document(f"{file}:{line}", group, part)
            line += part.count("\n")
    except UnusableRowError as error:
        yield Reject(f"{file}:{line}", error.reason, str(error))
    else:
        if not group:
            yield Reject(str(file), "empty_document", "the file is empty")


def _blocks(file: Path) -> Iterator[str]:
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8-sig")(), translate=True)
    count, begin = 0, True
    with open_decompressed(file) as stream:
        for block in iter(lambda: stream.read(_BLOCK), None):
            count += len(block)
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                place = count - len(error.object) + error.start
                raise UnusableRowError("not_utf8", f"not UTF-8 at byte {place} of the file") from error
            if begin and _JSON.match(text):
                raise ValueError(f"{file}: JSON, and no text: name it .jsonl or .json, so that its rows are read")
            begin = False
            yield text
            if not block:
                return


# All dataset formats by name.

Reader = Callable[[Any], TableReader]  # of a row
Rows = Callable[[Path], Iterator[RawRow | Reject]]  # of a file


class Dataset(NamedTuple):
    """The rows of a dataset, and the function that converts one; without it they are what the format generates."""

    rows: Iterator[RawRow | Example | Document | Reject]
    convert: Callable[[RawRow], Example | Reject] | None = None

    def item(self, row: RawRow | Example | Document | Reject) -> Example | Document | Reject:
        """What a row becomes."""
        if not isinstance(row, tuple):
            return row
        assert self.convert is not None
        found = json_row(*row) if isinstance(row[1], Unparsed) else row
        return found if isinstance(found, Reject) else self.convert(found)


class DatasetFormat(NamedTuple):
    """The functions that read the rows of a file, and convert a row to a conversation."""

    rows: Rows
    conversation: Callable[[Any], Conversation] | None = None
    reader: Reader | None = None

    def convert(self, row: RawRow) -> Example | Reject:
        if self.reader is not None:
            return _read(row, self.reader(row[1]))
        assert self.conversation is not None
        try:
            return Example(row[0], None, as_turns(self.conversation(row[1])))
        except UnusableRowError as error:
            return Reject(row[0], error.reason, str(error))


def _always(reader: TableReader) -> Reader:
    return lambda row: reader


COLUMNS = {  # of formats that are a mapping
    "sharegpt": {
        "messages": "conversations", "role": "from", "content": "value", "system": "system", "tools": "tools",
    },
    "alpaca": {"prompt": "instruction", "query": "input", "response": "output"},
    "dolly": {"prompt": "instruction", "query": "context", "response": "response"},
}  # fmt: skip
_FORMATS = {
    "messages": DatasetFormat(partial(entries_of, columns=("messages", "prompt")), reader=chats.messages_reader),
    **{
        name: DatasetFormat(partial(entries_of, columns=columns.values()), reader=_always(reader_of(**columns)))
        for name, columns in COLUMNS.items()
    },
    "dailydialog": DatasetFormat(nonblank_lines, chats.from_dailydialog),
    "chitchat": DatasetFormat(chats.chitchat_rows, chats.from_chitchat),
    "oasst": DatasetFormat(chats.oasst_rows, reader=chats.oasst_reader),
    "hh": DatasetFormat(partial(entries_of, columns=("chosen",)), chats.from_hh),
    "markers": DatasetFormat(chats.marker_rows, chats.from_markers),
    "gsm8k": DatasetFormat(partial(entries_of, columns=("question",)), chats.from_gsm8k),
    "personachat": DatasetFormat(table_rows, chats.from_personachat),
    "text": DatasetFormat(paragraphs, chats.from_text),
}
_GENERATORS = {"skills": skills.generate, "talk": talk.generate}
FORMAT_NAMES = (*_FORMATS, *_GENERATORS, "documents", "hub", "table")


def read_dataset(
    path: Path,
    name: str,
    *,
    limit: int | None,
    seed: int,
    mapping: TableMapping | None = None,
    files: Iterable[str] = ("*",),
) -> Iterator[Example | Document | Reject]:
    """The entries of a dataset (`open_dataset`)."""
    dataset = open_dataset(path, name, limit=limit, seed=seed, mapping=mapping, files=files)
    return map(dataset.item, dataset.rows)


def open_dataset(
    path: Path,
    name: str,
    *,
    limit: int | None,
    seed: int,
    mapping: TableMapping | None = None,
    files: Iterable[str] = ("*",),
) -> Dataset:
    """The first `limit` rows of a file in the named format, or of the files in a folder, or all of them.

    Only `skills` and `talk`, which generate their conversations, use `seed`, and only `table`, `hub` and
    `documents` use the mapping. Raises ValueError for an unknown format.
    """
    _check_mapping(name, mapping)
    if name in _GENERATORS:
        if limit is None:
            raise ValueError(f"format {name}: generates conversations without end: set limit")
        return Dataset(_GENERATORS[name](path, limit=limit, seed=seed))
    if name == "hub":
        dataset = _hub_dataset(path, mapping)
    elif name == "documents":
        dataset = Dataset(read_documents(path, files, mapping))
    elif mapping is not None:
        dataset = _table(path, _mapped_rows(path, files, mapping.columns), mapping)
    else:
        form = _form(name)
        read = _prose(form.rows) if form.rows in (paragraphs, nonblank_lines) else form.rows
        dataset = Dataset((row for file in files_of(path, files) for row in read(file)), form.convert)
    return dataset._replace(rows=islice(dataset.rows, limit))


def _mapped_rows(path: Path, files: Iterable[str], columns: Columns) -> Iterator[RawRow | Reject]:
    if columns.parent is None:
        return rows_of(path, files, columns.named().values())
    return (row for file in files_of(path, files) for row in grow(rows_of(file, columns=names_of(columns)), columns))


def _check_mapping(name: str, mapping: TableMapping | None) -> None:
    """Raise ValueError for a format that needs a mapping, or takes none, or not this one."""
    if name == "table" and mapping is None:
        raise ValueError("format table: needs columns: `chatmill prepare --look FILE` proposes them")
    if mapping is not None and name not in ("table", "hub", "documents"):
        raise ValueError(f"format {name}: takes no columns: use the format table")
    if mapping is not None and name == "table" and mapping.columns.text is not None:
        raise ValueError("format table: columns.text is of documents: use the format documents")


def _prose(rows: Rows) -> Rows:
    def read(file: Path) -> Iterator[RawRow | Reject]:
        for number, row in enumerate(rows(file)):
            if not number and not isinstance(row, Reject) and _is_json(row[1].partition("\n")[0]):
                raise ValueError(f"{row[0]}: JSON, not text: use the format messages, sharegpt or table")
            yield row

    return read


def _is_json(line: str) -> bool:
    if not line.lstrip().startswith(("{", "[")):
        return False
    try:
        parse_json(line)
    except ValueError:
        return False
    return True


def _hub_dataset(path: Path, mapping: TableMapping | None) -> Dataset:
    descriptor = containers.read_descriptor(path)
    found = mapping or descriptor.mapping
    if descriptor.format == "documents" or (found is not None and found.columns.text is not None):
        return Dataset(document_rows(containers.hub_rows(descriptor), found))
    if found is not None:
        rows = containers.hub_rows(descriptor)
        return _table(path, rows if found.columns.parent is None else grow(rows, found.columns), found)
    if descriptor.format == "table":
        raise ValueError(f"{path}: format table: needs columns")
    form = _form(descriptor.format)
    if form.rows in (nonblank_lines, paragraphs):
        raise ValueError(
            f"{path}: format {descriptor.format!r} reads lines of text, but a hub dataset has rows: choose another"
        )
    return Dataset(containers.hub_rows(descriptor), form.convert)


def _form(name: str) -> DatasetFormat:
    if name not in _FORMATS:
        raise ValueError(f"unknown format {name!r}: expected one of {', '.join(FORMAT_NAMES)}")
    return _FORMATS[name]


def _table(path: Path, rows: Iterable[RawRow | Reject], mapping: TableMapping) -> Dataset:
    reader = TableReader(mapping.nested())
    return Dataset(_seen(path, rows, reader, mapping.columns.parent), partial(_read, reader=reader))


def _seen(
    path: Path, rows: Iterable[RawRow | Reject], reader: TableReader, parent: str | None
) -> Iterator[RawRow | Reject]:
    """The rows of a table. Raises ValueError at the end for optional columns that no row had."""
    last = None
    for row in rows:
        if isinstance(row, tuple):
            last = row[1]
            reader.see(last)
        yield row
    if reader.unseen and last is not None:
        name, column = next(iter(reader.unseen.items()))
        if name == "replies" and parent is not None:
            raise ValueError(f"{path}: columns.parent: no row has the id of another one in {parent!r}")
        if name in OPTIONAL_IN_MESSAGES:
            raise ValueError(f"{path}: columns.{name}: no message has {column!r}")
        there = ", ".join(map(repr, last)) if isinstance(last, dict) else "none"
        raise ValueError(f"{path}: columns.{name}: no row has the column {column!r}: the last one has {there}")


def _read(row: RawRow, reader: TableReader) -> Example | Reject:
    place, entry = row
    try:
        reader.check_language(entry)
        turns, dropped, notes = reader.turns(entry)
    except UnusableRowError as error:
        return Reject(place, error.reason, str(error), *reader.extent(entry))
    group = reader.group(entry)
    return Example(place, None if group is None else column_group(group), turns, None, dropped, notes)
