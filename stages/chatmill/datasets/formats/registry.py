"""All dataset formats by name: a file gives rows, and each row a conversation, or a reject that says why not."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
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
from chatmill.datasets.formats.row_readers import Unparsed, check_is_text, nonblank_lines, paragraphs, table_rows
from chatmill.datasets.formats.table import TableReader, reader_of
from chatmill.datasets.formats.trees import grow, names_of
from chatmill.datasets.repair import SourceParameters
from chatmill.talk.persona import StrictModel, read_yaml

Item = Example | Document | Reject
Rows = Iterator[RawRow | Reject]
Convert = Callable[[str, Any], Example]  # a row's place and entry; raises UnusableRowError


class Dataset(NamedTuple):
    """The rows of a dataset, and the function that converts one; without it they are what the format generates."""

    rows: Iterator[RawRow | Item]
    convert: Convert | None = None

    def item(self, row: RawRow | Item) -> Item:
        if not isinstance(row, tuple):
            return row
        assert self.convert is not None
        place, entry = row
        try:
            return self.convert(place, entry.value() if isinstance(entry, Unparsed) else entry)
        except UnusableRowError as error:
            return error.reject(place)


class DatasetFormat(NamedTuple):
    rows: Callable[[Path], Rows]  # of a file
    convert: Convert


def _entries(*columns: str) -> Callable[[Path], Rows]:
    return partial(entries_of, columns=columns)


def _of_text(read: Callable[[Path], Rows], file: Path) -> Rows:
    check_is_text(file, "use the format messages, sharegpt or table")
    return read(file)


def _conversation(convert: Callable[[Any], Conversation]) -> Convert:
    return lambda place, entry: Example(place, None, as_turns(convert(entry)))


def _read_by(reader_for: Callable[[Any], TableReader]) -> Convert:
    return lambda place, entry: reader_for(entry).example(place, entry)


COLUMNS = {  # of formats that are a mapping
    "sharegpt": {
        "messages": "conversations", "role": "from", "content": "value", "system": "system", "tools": "tools",
    },
    "alpaca": {"prompt": "instruction", "query": "input", "response": "output"},
    "dolly": {"prompt": "instruction", "query": "context", "response": "response"},
}  # fmt: skip
_FORMATS = {
    "messages": DatasetFormat(_entries("messages", "prompt"), _read_by(chats.messages_reader)),
    **{
        name: DatasetFormat(_entries(*columns.values()), reader_of(**columns).example)
        for name, columns in COLUMNS.items()
    },
    "dailydialog": DatasetFormat(partial(_of_text, nonblank_lines), _conversation(chats.from_dailydialog)),
    "chitchat": DatasetFormat(_entries("messages"), _conversation(chats.from_chitchat)),
    "oasst": DatasetFormat(chats.oasst_rows, _read_by(chats.oasst_reader)),
    "hh": DatasetFormat(_entries("chosen"), _conversation(chats.from_hh)),
    "markers": DatasetFormat(chats.marker_rows, _conversation(chats.from_markers)),
    "gsm8k": DatasetFormat(_entries("question"), _conversation(chats.from_gsm8k)),
    "personachat": DatasetFormat(table_rows, _conversation(chats.from_personachat)),
    "text": DatasetFormat(partial(_of_text, paragraphs), _conversation(chats.from_text)),
}
_OF_LINES = ("dailydialog", "text")
_GENERATORS = {"skills": skills.generate, "talk": talk.generate}
FORMAT_NAMES = (*_FORMATS, *chat_logs.EXPORTS, *_GENERATORS, "documents", "hub", "table")


def read_dataset(path: Path, format: str, **section: Any) -> Iterator[Item]:
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
        dataset = Dataset(chat_logs.read_export(path, files_of(path, files), name, parameters.roles or {}))
    elif mapping is not None:
        names = names_of(mapping.columns)
        tables = (grow(rows_of(file, names), mapping.columns) for file in files_of(path, files))
        dataset = _table(path, chain.from_iterable(tables), mapping)
    else:
        form = _form(name)
        dataset = Dataset(chain.from_iterable(map(form.rows, files_of(path, files))), form.convert)
    return dataset._replace(rows=islice(dataset.rows, parameters.limit))


def _check_mapping(name: str, mapping: TableMapping | None) -> None:
    """Raise ValueError for a format that needs a mapping, or takes none, or not this one."""
    if name == "table" and mapping is None:
        raise ValueError("format table: needs columns: `chatmill prepare --look FILE` proposes them")
    if mapping is not None and name not in ("table", "hub", "documents"):
        raise ValueError(f"format {name}: takes no columns: use the format table")
    if mapping is not None and name == "table" and mapping.columns.text is not None:
        raise ValueError("format table: columns.text is of documents: use the format documents")


def _form(name: str) -> DatasetFormat:
    if name not in _FORMATS:
        raise ValueError(f"unknown format {name!r}: expected one of {', '.join(FORMAT_NAMES)}")
    return _FORMATS[name]


# Tables, by a mapping.


def _table(path: Path, rows: Iterable[RawRow | Reject], mapping: TableMapping) -> Dataset:
    reader = TableReader(mapping.nested())
    return Dataset(_seen(path, rows, reader, mapping.columns.parent), reader.example)


def _seen(path: Path, rows: Iterable[RawRow | Reject], reader: TableReader, parent: str | None) -> Rows:
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


# Datasets of the Hugging Face hub.


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

    def rows(self) -> Iterator[RawRow]:
        """The rows of the dataset, streamed. Raises ValueError where the extra is not installed."""
        try:
            from datasets import load_dataset
        except ModuleNotFoundError as error:
            raise ValueError("format hub: needs an extra: pip install 'chatmill[hf]'") from error
        chosen: dict[str, Any] = {"split": self.split, "revision": self.revision, "streaming": True}
        for number, row in enumerate(load_dataset(self.dataset, self.config, **chosen), start=1):
            yield f"{self.dataset}/{self.split}:{number}", without_null_arguments(dict(row))


def _hub_dataset(path: Path, mapping: TableMapping | None) -> Dataset:
    descriptor = read_yaml(path, Descriptor, yaml.SafeLoader)
    name, found = descriptor.format, mapping or descriptor.mapping
    if name == "documents" or (found is not None and found.columns.text is not None):
        return Dataset(document_rows(descriptor.rows(), found))
    if found is not None:
        return _table(path, grow(descriptor.rows(), found.columns), found)
    if name == "table":
        raise ValueError(f"{path}: format table: needs columns")
    if name in _OF_LINES:
        raise ValueError(f"{path}: format {name!r} reads lines of text, but a hub dataset has rows: choose another")
    return Dataset(descriptor.rows(), _form(name).convert)
