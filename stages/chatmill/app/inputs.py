"""What people point at to see its tokens: a plain text, or a conversation in any of the forms it is kept in.

A conversation is recognised as ChatML, `<|im_start|>user …`; as a record, `{"text": "<|im_start|>user …"}`; and as
`{"messages": [{"role": …, "content": …}]}`, or that list alone. In a file each line may be one.
"""

import io
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from chatmill.conversation.chatml import BOS, IM_END, IM_START, Conversation, parse
from chatmill.datasets.formats import messages
from chatmill.datasets.formats.json_document import values
from chatmill.datasets.formats.row_readers import MAX_ROW_BYTES, open_decompressed

TextOrConversation = str | Conversation
MAX_TEXT_CHARACTERS = 1_000_000  # characters of a plain text; nobody reads more, token by token


def parse_input(content: bytes, number: int, name: str) -> TextOrConversation:
    """What a text says: conversation `number`, from 1, of those in it, or the text itself. Raises ValueError."""
    if len(content) > MAX_ROW_BYTES:
        raise ValueError(f"{name}: over {MAX_ROW_BYTES:,} bytes: show a part of it")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 at byte {error.start}") from error
    if _is_json_of_conversations(text):
        return _select(values(Path(name), io.BytesIO(content), MAX_ROW_BYTES), number, name)
    if number != 1:
        raise ValueError(f"{name}: no conversation {number}: it is one text")
    try:
        return _parse_entry(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def read_input_file(file: Path, number: int) -> TextOrConversation:
    """What a file holds: of a .json or .jsonl file, packed or not, its conversation `number`, from 1.

    Raises ValueError with file and line.
    """
    with open_decompressed(file) as stream:
        if {".json", ".jsonl"} & set(file.suffixes):
            return _select(values(file, stream, MAX_ROW_BYTES), number, str(file))
        return parse_input(stream.read(MAX_ROW_BYTES + 1), number, str(file))


def iter_inputs(file: Path) -> Iterator[tuple[str, TextOrConversation]]:
    """Place and content of all that a file holds: of a .json or .jsonl file, packed or not, of each of its entries.

    Raises ValueError with file and line.
    """
    with open_decompressed(file) as stream:
        if {".json", ".jsonl"} & set(file.suffixes):
            found = _entries(values(file, stream, MAX_ROW_BYTES))
        else:
            try:
                found = iter([(str(file), stream.read().decode("utf-8-sig"))])
            except UnicodeDecodeError as error:
                raise ValueError(f"{file}: not UTF-8 at byte {error.start}") from error
        for place, entry in found:
            try:
                yield place, _parse_entry(entry, max_characters=None)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from error


def _is_json_of_conversations(text: str) -> bool:
    try:
        first, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return False
    entry = first[0] if isinstance(first, list) and first else first
    return isinstance(entry, dict) and not {"messages", "role", "text"}.isdisjoint(entry)


def _select(found: Iterable[tuple[str, Any]], number: int, name: str) -> TextOrConversation:
    place, entry = next(islice(_entries(found), number - 1, None), ("", None))
    if not place:
        raise ValueError(f"{name}: no conversation {number}: it holds fewer")
    try:
        return _parse_entry(entry)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def _entries(found: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """What is in each value: itself, or what is in a list, unless this is one of messages."""
    for place, value in found:
        if isinstance(value, list) and not all(isinstance(one, dict) and "role" in one for one in value):
            yield from ((place, entry) for entry in value)
        else:
            yield place, value


def _parse_entry(content: Any, max_characters: int | None = MAX_TEXT_CHARACTERS) -> TextOrConversation:
    if isinstance(content, dict) and isinstance(content.get("text"), str):
        content = content["text"]
    if isinstance(content, list):
        content = {"messages": content}
    if not isinstance(content, str):
        return messages.conversation(content)
    rendered = content.removeprefix(BOS)
    if rendered.startswith(IM_START):
        return parse(f"{rendered}\n" if rendered.endswith(IM_END) else rendered)
    if not 0 < len(content) <= (max_characters or len(content)):
        raise ValueError(f"a text of {len(content):,} characters: expected some, and at most {MAX_TEXT_CHARACTERS:,}")
    return content
