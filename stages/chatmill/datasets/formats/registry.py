"""All dataset formats by name.

A format is a module here with a function `conversation`, which makes a conversation of an entry or raises `Unusable`,
imported below, and a line that names the function which reads entries from a file.
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
    text,
)
from chatmill.datasets.formats.item import Item, Reject, Row, Unusable
from chatmill.datasets.formats.reading import blocks, filled_lines, json_rows, table_rows


class Format(NamedTuple):
    """How a file becomes rows, and a row a conversation."""

    rows: Callable[[Path], Iterator[Row | Reject]]
    conversation: Callable[[Any], Conversation]


_FORMATS = {
    "messages": Format(json_rows, messages.conversation),
    "sharegpt": Format(json_rows, sharegpt.conversation),
    "alpaca": Format(json_rows, alpaca.conversation),
    "dolly": Format(json_rows, dolly.conversation),
    "dailydialog": Format(filled_lines, dailydialog.conversation),
    "chitchat": Format(chitchat.rows, chitchat.conversation),
    "oasst": Format(oasst.rows, oasst.conversation),
    "hh": Format(json_rows, markers.hh_conversation),
    "markers": Format(markers.rows, markers.conversation),
    "gsm8k": Format(json_rows, gsm8k.conversation),
    "personachat": Format(table_rows, personachat.conversation),
    "text": Format(blocks, text.conversation),
}
NAMES = (*_FORMATS, "skills", "hub")


def read(file: Path, name: str, *, limit: int | None, seed: int) -> Iterator[Item | Reject]:
    """The entries of a file in the format of that name; the first `limit` of them.

    `seed` is for the format that generates its conversations. Raises ValueError for an unknown format.
    """
    if name == "skills":
        if limit is None:
            raise ValueError("the format skills generates conversations without end: give it a limit")
        return skills.generate(file, limit=limit, seed=seed)
    if name == "hub":
        descriptor = hub.read_descriptor(file)
        form = _form(descriptor.format)
        if form.rows in (filled_lines, blocks):
            raise ValueError(f"{file}: format {descriptor.format!r} reads lines of text, but a hub dataset has rows")
        rows: Iterator[Row | Reject] = hub.rows(descriptor)
    else:
        form = _form(name)
        rows = form.rows(file)
    return islice(_items(rows, form.conversation), limit)


def _form(name: str) -> Format:
    if name not in _FORMATS:
        raise ValueError(f"unknown format {name!r}: expected one of {', '.join(NAMES)}")
    return _FORMATS[name]


def _items(rows: Iterator[Row | Reject], conversation: Callable[[Any], Conversation]) -> Iterator[Item | Reject]:
    for row in rows:
        if isinstance(row, Reject):
            yield row
            continue
        place, entry = row
        try:
            yield Item(place, None, conversation(entry))
        except Unusable as error:
            yield Reject(place, error.reason, str(error))
