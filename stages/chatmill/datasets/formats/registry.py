"""All dataset formats by name.

A format is a module in this folder with a function `conversation`, which converts an entry to a conversation or raises
`UnusableRowError`; a line of `_FORMATS` combines it with the function that reads the entries of a file.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from chatmill.conversation.chatml import Conversation
from chatmill.datasets.formats import (
    alpaca,
    chitchat,
    dailydialog,
    dolly,
    gsm8k,
    hub,
    markers,
    messages,
    oasst,
    personachat,
    sharegpt,
    skills,
    table,
    talk,
    text,
)
from chatmill.datasets.formats.containers import rows_of
from chatmill.datasets.formats.example import Example, RawRow, Reject, UnusableRowError
from chatmill.datasets.formats.row_readers import json_rows, nonblank_lines, paragraphs, table_rows
from chatmill.datasets.formats.table import TableMapping


class DatasetFormat(NamedTuple):
    """The functions that read the rows of a file, and convert a row to a conversation."""

    rows: Callable[[Path], Iterator[RawRow | Reject]]
    conversation: Callable[[Any], Conversation]


_FORMATS = {
    "messages": DatasetFormat(json_rows, messages.conversation),
    "sharegpt": DatasetFormat(json_rows, sharegpt.conversation),
    "alpaca": DatasetFormat(json_rows, alpaca.conversation),
    "dolly": DatasetFormat(json_rows, dolly.conversation),
    "dailydialog": DatasetFormat(nonblank_lines, dailydialog.conversation),
    "chitchat": DatasetFormat(chitchat.rows, chitchat.conversation),
    "oasst": DatasetFormat(oasst.rows, oasst.conversation),
    "hh": DatasetFormat(json_rows, markers.hh_conversation),
    "markers": DatasetFormat(markers.rows, markers.conversation),
    "gsm8k": DatasetFormat(json_rows, gsm8k.conversation),
    "personachat": DatasetFormat(table_rows, personachat.conversation),
    "text": DatasetFormat(paragraphs, text.conversation),
}
_GENERATORS = {"skills": skills.generate, "talk": talk.generate}
FORMAT_NAMES = (*_FORMATS, *_GENERATORS, "hub", "table")


def read_dataset(
    file: Path, name: str, *, limit: int | None, seed: int, mapping: TableMapping | None = None
) -> Iterator[Example | Reject]:
    """The first `limit` entries of a file in the named format, or all of them.

    Only `skills` and `talk`, which generate their conversations, use `seed`, and only `table` uses the mapping. Raises
    ValueError for an unknown format.
    """
    if (name == "table") == (mapping is None):
        raise ValueError(f"format {name}: {'needs columns' if mapping is None else 'takes no columns'}")
    if mapping is not None:
        return islice(_items(rows_of(file), table.reader(mapping)), limit)
    if name in _GENERATORS:
        if limit is None:
            raise ValueError(f"format {name}: generates conversations without end: set limit")
        return _GENERATORS[name](file, limit=limit, seed=seed)
    if name == "hub":
        descriptor = hub.read_descriptor(file)
        form = _form(descriptor.format)
        if form.rows in (nonblank_lines, paragraphs):
            raise ValueError(
                f"{file}: format {descriptor.format!r} reads lines of text, but a hub dataset has rows: choose another"
            )
        rows: Iterator[RawRow | Reject] = hub.rows(descriptor)
    else:
        form = _form(name)
        rows = form.rows(file)
    return islice(_items(rows, form.conversation), limit)


def _form(name: str) -> DatasetFormat:
    if name not in _FORMATS:
        raise ValueError(f"unknown format {name!r}: expected one of {', '.join(FORMAT_NAMES)}")
    return _FORMATS[name]


def _items(rows: Iterator[RawRow | Reject], conversation: Callable[[Any], Conversation]) -> Iterator[Example | Reject]:
    for row in rows:
        if isinstance(row, Reject):
            yield row
            continue
        place, entry = row
        try:
            yield Example(place, None, conversation(entry))
        except UnusableRowError as error:
            yield Reject(place, error.reason, str(error))
