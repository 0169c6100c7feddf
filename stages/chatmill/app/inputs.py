"""Input of the commands: a plain text, or a conversation in any of the forms that are read.

A conversation is read from ChatML, `<|im_start|>user …`; from a record, `{"text": "<|im_start|>user …"}`; and from
`{"messages": [{"role": …, "content": …}]}`, or that list alone. In a file each line may be a conversation. One whose
record says which messages are trained remains a Record, and so does a document of the pipeline.
"""

import io
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from chatmill.conversation import BOS, IM_END, IM_START, Conversation, Record, is_document, parse, unescape
from chatmill.datasets.formats import chats
from chatmill.datasets.formats.json_document import values
from chatmill.datasets.formats.row_readers import MAX_ROW_BYTES, open_decompressed

TextOrConversation = str | Conversation | Record
MAX_TEXT_CHARACTERS = 1_000_000  # of a plain text that is shown token by token


def parse_input(content: bytes, number: int, name: str) -> TextOrConversation:
    """Conversation `number`, from 1, of those in a text; the text itself where it has none. Raises ValueError."""
    if len(content) > MAX_ROW_BYTES:
        raise ValueError(f"{name}: over {MAX_ROW_BYTES:,} bytes: show a part of it")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 at byte {error.start}") from error
    if _is_json_of_conversations(text):
        return _select(values(Path(name), io.BytesIO(content), MAX_ROW_BYTES), number, name)
    if number != 1:
        raise ValueError(f"{name}: no conversation {number}: the input is one text")
    try:
        return _parse_entry(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def read_input_file(file: Path, number: int) -> TextOrConversation:
    """Conversation `number`, from 1, of a .json or .jsonl file, which may be compressed; else the file as one input.

    Raises ValueError with file and line.
    """
    with open_decompressed(file) as stream:
        if {".json", ".jsonl"} & set(file.suffixes):
            return _select(values(file, stream, MAX_ROW_BYTES), number, str(file))
        return parse_input(stream.read(MAX_ROW_BYTES + 1), number, str(file))


def iter_inputs(file: Path) -> Iterator[tuple[str, TextOrConversation]]:
    """Place and content of each entry of a .json or .jsonl file, which may be compressed; any other is one text.

    Raises ValueError with file and line.
    """
    with open_decompressed(file) as stream:
        if {".json", ".jsonl"} & set(file.suffixes):
            entries = _entries(values(file, stream, MAX_ROW_BYTES))
        else:
            try:
                entries = iter([(str(file), stream.read().decode("utf-8-sig"))])
            except UnicodeDecodeError as error:
                raise ValueError(f"{file}: not UTF-8 at byte {error.start}") from error
        for place, entry in entries:
            try:
                yield place, _parse_entry(entry, max_characters=None)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from error


def text_or_messages(record: Record) -> str | Conversation:
    return unescape(record.text) if is_document(record.text) else parse(record.text)


def _is_json_of_conversations(text: str) -> bool:
    try:
        first, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return False
    entry = first[0] if isinstance(first, list) and first else first
    return isinstance(entry, dict) and not {"messages", "role", "text"}.isdisjoint(entry)


def _select(values_by_place: Iterable[tuple[str, Any]], number: int, name: str) -> TextOrConversation:
    place, entry = next(islice(_entries(values_by_place), number - 1, None), ("", None))
    if not place:
        raise ValueError(f"{name}: no conversation {number}: the input has fewer")
    try:
        return _parse_entry(entry)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def _entries(values_by_place: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The entries of each value: those of a list, unless it is a list of messages, or the value itself."""
    for place, value in values_by_place:
        if isinstance(value, list) and not all(isinstance(one, dict) and "role" in one for one in value):
            yield from ((place, entry) for entry in value)
        else:
            yield place, value


def _parse_entry(content: Any, max_characters: int | None = MAX_TEXT_CHARACTERS) -> TextOrConversation:
    if isinstance(content, dict) and isinstance(text := content.get("text"), str):
        if text.startswith(IM_START) and content.get("train") is not None:
            parse(text)
            return Record("", "", text, train=content["train"])
        if {"source", "group"} <= content.keys() and is_document(text):
            return Record("", "", text)
        content = text
    if isinstance(content, list):
        content = {"messages": content}
    if not isinstance(content, str):
        return chats.from_messages(content)
    rendered = content.removeprefix(BOS)
    if rendered.startswith(IM_START):
        return parse(f"{rendered}\n" if rendered.endswith(IM_END) else rendered)
    if not 0 < len(content) <= (max_characters or len(content)):
        raise ValueError(f"expected a text of 1 to {MAX_TEXT_CHARACTERS:,} characters, got {len(content):,}")
    return content


# Prompts in files, as the options of several commands name them.

STDIN = "-"
PROMPT_FILE_HELP = "append the text of a file, or with - of stdin, to each prompt; alone it is the prompt"


def join_prompt(prompt: str | None, appended: str | None) -> str:
    """A prompt, and on the lines after it the text of a file; each may be missing."""
    parts = [part for part in (prompt, appended) if part is not None]
    return "\n".join(part.strip("\n").rstrip() for part in parts).strip("\n")


def read_text(file: str) -> str:
    """The text of a UTF-8 file, or with - of standard input. Raises ValueError with the place of an invalid byte."""
    if file == STDIN:
        content, name = sys.stdin.buffer.read(MAX_ROW_BYTES + 1), "standard input"
    else:
        with Path(file).open("rb") as stream:
            content, name = stream.read(MAX_ROW_BYTES + 1), file
    if len(content) > MAX_ROW_BYTES:
        raise ValueError(f"{name}: over {MAX_ROW_BYTES:,} bytes: shorten it")
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 at byte {error.start}: save it as UTF-8") from error
