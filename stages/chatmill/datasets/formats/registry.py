"""All dataset formats by name, those of the Hugging Face hub included."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml
from pydantic import Field

from chatmill.conversation import Conversation
from chatmill.datasets.formats import chat_logs, chats, skills, talk
from chatmill.datasets.formats.containers import entries_of, files_of, rows_of, without_null_arguments
from chatmill.datasets.formats.documents import document_rows, read_documents
from chatmill.datasets.formats.example import Document, Example, RawRow, Reject, UnusableRowError, as_turns
from chatmill.datasets.formats.mapping import OPTIONAL_IN_MESSAGES, Columns, Roles, TableMapping
from chatmill.datasets.formats.row_readers import Unparsed, json_row, nonblank_lines, paragraphs, table_rows
from chatmill.datasets.formats.table import TableReader, reader_of
from chatmill.datasets.formats.trees import grow, names_of
from chatmill.datasets.repair import SourceParameters
from chatmill.datasets.split import column_group
from chatmill.talk.persona import StrictModel, read_yaml

Rows = Callable[[Path], Iterator[RawRow | Reject]]  # of a file
Convert = Callable[[RawRow], Example | Reject]


class Dataset(NamedTuple):
    """The rows of a dataset, and the function that converts one; without it they are what the format generates."""

    rows: Iterator[RawRow | Example | Document | Reject]
    convert: Callable[[RawRow], Example | Reject] | None = None

    def item(self, row: RawRow | Example | Document | Reject) -> Example | Document | Reject:
        if not isinstance(row, tuple):
            return row
        assert self.convert is not None
        found = json_row(*row) if isinstance(row[1], Unparsed) else row
        return found if isinstance(found, Reject) else self.convert(found)


class DatasetFormat(NamedTuple):
    rows: Rows
    convert: Convert


def _simple(rows: Rows, conversation: Callable[[Any], Conversation]) -> DatasetFormat:
    return DatasetFormat(rows, partial(_convert, conversation=conversation))


def _convert(row: RawRow, conversation: Callable[[Any], Conversation]) -> Example | Reject:
    try:
        return Example(row[0], None, as_turns(conversation(row[1])))
    except UnusableRowError as error:
        return Reject(row[0], error.reason, str(error))


def _convert_with(row: RawRow, reader: Callable[[Any], TableReader]) -> Example | Reject:
    return _convert_mapped(row, reader(row[1]))


def _convert_mapped(row: RawRow, reader: TableReader) -> Example | Reject:
    place, entry = row
    try:
        reader.check_language(entry)
        turns, dropped, notes = reader.turns(entry)
    except UnusableRowError as error:
        return Reject(place, error.reason, str(error), *reader.extent(entry))
    group = reader.group(entry)
    return Example(place, None if group is None else column_group(group), turns, None, dropped, notes)


COLUMNS = {  # of formats that are a mapping
    "sharegpt": {
        "messages": "conversations", "role": "from", "content": "value", "system": "system", "tools": "tools",
    },
    "alpaca": {"prompt": "instruction", "query": "input", "response": "output"},
    "dolly": {"prompt": "instruction", "query": "context", "response": "response"},
}  # fmt: skip
_FORMATS = {
    "messages": DatasetFormat(
        partial(entries_of, columns=("messages", "prompt")), partial(_convert_with, reader=chats.messages_reader)
    ),
    **{
        name: DatasetFormat(
            partial(entries_of, columns=columns.values()), partial(_convert_mapped, reader=reader_of(**columns))
        )
        for name, columns in COLUMNS.items()
    },
    "dailydialog": _simple(nonblank_lines, chats.from_dailydialog),
    "chitchat": _simple(chats.chitchat_rows, chats.from_chitchat),
    "oasst": DatasetFormat(chats.oasst_rows, partial(_convert_with, reader=chats.oasst_reader)),
    "hh": _simple(partial(entries_of, columns=("chosen",)), chats.from_hh),
    "markers": _simple(chats.marker_rows, chats.from_markers),
    "gsm8k": _simple(partial(entries_of, columns=("question",)), chats.from_gsm8k),
    "personachat": _simple(table_rows, chats.from_personachat),
    "text": _simple(paragraphs, chats.from_text),
}
_GENERATORS = {"skills": skills.generate, "talk": talk.generate}
FORMAT_NAMES = (*_FORMATS, *chat_logs.EXPORTS, *_GENERATORS, "documents", "hub", "table")


def read_dataset(path: Path, format: str, **section: Any) -> Iterator[Example | Document | Reject]:
    """The entries of a dataset, with the keys that its section of params.yaml may have."""
    dataset = open_dataset(SourceParameters(path=path, format=format, **section))
    return map(dataset.item, dataset.rows)


def open_dataset(parameters: SourceParameters) -> Dataset:
    """The first `limit` rows of a file in its format, or of the files in a folder, or all of them.

    Raises ValueError for an unknown format, and for columns that it does not take.
    """
    path, name, files, mapping = parameters.path, parameters.format, parameters.patterns, parameters.mapping
    _check_mapping(name, mapping)
    if name in _GENERATORS:
        if parameters.limit is None:
            raise ValueError(f"format {name}: generates conversations without end: set limit")
        return Dataset(_GENERATORS[name](path, limit=parameters.limit, seed=parameters.seed))
    if name == "hub":
        dataset = _hub_dataset(path, mapping)
    elif name == "documents":
        dataset = Dataset(read_documents(path, files, mapping))
    elif name in chat_logs.EXPORTS:
        rows = chat_logs.log_rows(path, files_of(path, files), name, parameters.roles or {})
        dataset = Dataset(rows, chat_logs.convert)
    elif mapping is not None:
        dataset = _table(path, _mapped_rows(path, files, mapping.columns), mapping)
    else:
        form = _form(name)
        read = partial(_prose, form.rows) if form.rows in (paragraphs, nonblank_lines) else form.rows
        dataset = Dataset((row for file in files_of(path, files) for row in read(file)), form.convert)
    return dataset._replace(rows=islice(dataset.rows, parameters.limit))


def _mapped_rows(path: Path, files: Iterable[str], columns: Columns) -> Iterator[RawRow | Reject]:
    if columns.parent is None and columns.conversation is None:
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


def _prose(read: Rows, file: Path) -> Iterator[RawRow | Reject]:
    """The rows of a file of text. Raises ValueError for JSON."""
    for number, row in enumerate(read(file)):
        if not number and not isinstance(row, Reject):
            first = row[1].partition("\n")[0].lstrip()
            if first.startswith(("{", "[")) and not isinstance(json_row(row[0], first), Reject):
                raise ValueError(f"{row[0]}: JSON, not text: use the format messages, sharegpt or table")
        yield row


class Descriptor(StrictModel):
    """A dataset of the hub (extra `hf`), as a YAML file names it.

    dataset: some-team/some-chats
    revision: 0123456789abcdef0123456789abcdef01234567   # a commit, so that each run reads the same rows
    split: train
    format: messages                                     # the format of its rows, or a mapping: columns, roles, first
    config: default                                      # optional
    """

    dataset: str
    revision: str
    split: str
    format: str = "table"
    config: str | None = None
    columns: Columns | None = None
    roles: Roles = Field({})
    first: Literal["user", "assistant"] | None = None

    @property
    def mapping(self) -> TableMapping | None:
        return TableMapping.model_validate(self, from_attributes=True) if self.columns else None


def hub_rows(descriptor: Descriptor) -> Iterator[RawRow]:
    """The rows of the dataset, streamed. Raises ValueError where the extra is not installed."""
    try:
        from datasets import load_dataset
    except ModuleNotFoundError as error:
        raise ValueError("format hub: needs an extra: pip install 'chatmill[hf]'") from error
    chosen: dict[str, Any] = {"split": descriptor.split, "revision": descriptor.revision, "streaming": True}
    dataset = load_dataset(descriptor.dataset, descriptor.config, **chosen)
    for number, row in enumerate(dataset, start=1):
        yield f"{descriptor.dataset}/{descriptor.split}:{number}", without_null_arguments(dict(row))


def _hub_dataset(path: Path, mapping: TableMapping | None) -> Dataset:
    descriptor = read_yaml(path, Descriptor, yaml.SafeLoader)
    found = mapping or descriptor.mapping
    if descriptor.format == "documents" or (found is not None and found.columns.text is not None):
        return Dataset(document_rows(hub_rows(descriptor), found))
    if found is not None:
        return _table(path, grow(hub_rows(descriptor), found.columns), found)
    if descriptor.format == "table":
        raise ValueError(f"{path}: format table: needs columns")
    form = _form(descriptor.format)
    if form.rows in (nonblank_lines, paragraphs):
        raise ValueError(
            f"{path}: format {descriptor.format!r} reads lines of text, but a hub dataset has rows: choose another"
        )
    return Dataset(hub_rows(descriptor), form.convert)


def _form(name: str) -> DatasetFormat:
    if name not in _FORMATS:
        raise ValueError(f"unknown format {name!r}: expected one of {', '.join(FORMAT_NAMES)}")
    return _FORMATS[name]


def _table(path: Path, rows: Iterable[RawRow | Reject], mapping: TableMapping) -> Dataset:
    reader = TableReader(mapping.nested())
    return Dataset(_seen(path, rows, reader, mapping.columns.parent), partial(_convert_mapped, reader=reader))


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
