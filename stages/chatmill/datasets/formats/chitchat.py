"""BYU's chitchat dataset: one JSON object (or array) of conversations, or of a single one.

    {"<id>": {"prompt": …, "messages": [[{"text": "Hello", "timestamp": …, "sender": "<id>"}], …]}, …}

Consecutive messages of one sender become the lines of one turn. The first sender is the user.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from chatmill.conversation import Conversation
from chatmill.datasets.formats.example import (
    RawRow,
    Reject,
    UnusableRowError,
    alternate,
    check_turn_count,
    describe_value,
    list_of,
    text_of,
)
from chatmill.datasets.formats.row_readers import json_entries


def rows(file: Path) -> Iterator[RawRow | Reject]:
    """The conversations of a file."""
    entries = json_entries(file)
    for entry in entries:
        if isinstance(entry, Reject):
            yield entry
            continue
        place, key, value = entry
        if key is None or isinstance(value, dict):
            yield place, value
        else:  # the file is one conversation, and this is its first field
            fields = (entry[1:] for entry in entries if not isinstance(entry, Reject))
            yield place, {key: value} | {key: value for key, value in fields if key == "messages"}


def conversation(row: Any) -> Conversation:
    """The conversation of one row. Raises UnusableRowError."""
    messages: list[tuple[str, str]] = []
    for burst in list_of(row, "messages"):
        if not isinstance(burst, list):
            raise UnusableRowError("missing_field", f"messages: expected lists, got {describe_value(burst)}")
        check_turn_count(len(messages) + len(burst))
        messages += [(text_of(message, "sender"), text_of(message, "text")) for message in burst]
    turns = groupby(messages, key=lambda message: message[0])
    return alternate(["\n".join(text for _, text in turn) for _, turn in turns])
