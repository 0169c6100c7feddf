r"""The older format, in which plain words mark the turns.

    Human: Hi
    Assistant: Hello!

Files are JSON lines or a JSON array of `{"text": …}`, or text in which a blank line ends a conversation. A turn starts
with `Human:`, `User:`, `Assistant:` or `System:` at the start of a line, optionally after `### `, and may span several
lines. In the format `hh` the text is under `chosen`, and turns start after a blank line.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chatmill.conversation import Conversation, Message
from chatmill.datasets.formats.example import RawRow, Reject, UnusableRowError, check_turn_count, text_of
from chatmill.datasets.formats.row_readers import json_rows, paragraphs

ROLES = {"System": "system", "Human": "user", "User": "user", "Assistant": "assistant"}
_LINE = re.compile(r"(?:\A|\n{1,2})(?:### ?)?(System|Human|User|Assistant): ?")
_PARAGRAPH = re.compile(r"(?:\A|\n\n)(Human|Assistant): ?")


def rows(file: Path) -> Iterator[RawRow | Reject]:
    """The rows of a JSON file, or the paragraphs of a text file."""
    if any(suffix in (".json", ".jsonl") for suffix in file.suffixes):
        yield from json_rows(file)
    else:
        for row in paragraphs(file):
            yield row if isinstance(row, Reject) else (row[0], {"text": row[1]})


def conversation(row: Any) -> Conversation:
    """The conversation of one row. Raises UnusableRowError."""
    return _turns(text_of(row, "text"), _LINE)


def hh_conversation(row: Any) -> Conversation:
    """The conversation with the chosen reply. Raises UnusableRowError."""
    return _turns(text_of(row, "chosen"), _PARAGRAPH)


def _turns(text: str, marker: re.Pattern[str]) -> Conversation:
    pieces = marker.split(text)  # what precedes the first marker, role, text, role, text, …
    if pieces[0].strip() or len(pieces) == 1:
        raise UnusableRowError("no_marker", f"expected a turn to start with a marker such as Human:, not {text[:40]!r}")
    check_turn_count(len(pieces) // 2)
    turns = zip(pieces[1::2], pieces[2::2], strict=True)
    return [Message.from_text(ROLES[marker], content) for marker, content in turns]
