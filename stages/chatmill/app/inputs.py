"""Texts and conversations that commands are given, in any of the forms that are read.

A conversation is read from ChatML, `<|im_start|>user …`; from a record, `{"text": "<|im_start|>user …"}`; and from
`{"messages": [{"role": …, "content": …}]}`, or that list alone. In a file each line may be a conversation. One whose
record says which messages are trained remains a Record, and so does a document of the pipeline.
"""

import io
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

from chatmill.app.arguments import MAX_INPUT_BYTES, decode
from chatmill.app.named_models import named_errors
from chatmill.conversation import BOS, IM_END, IM_START, Conversation, Record, check_turns, is_document, parse, unescape
from chatmill.datasets.formats.json_document import values
from chatmill.pipeline.processes import error_line
from chatmill.tokenizer.encoding.chat_tokenizer import check_text

TextOrConversation = str | Conversation | Record
MAX_TEXT_CHARACTERS = 1_000_000  # of a plain text that is shown token by token


def parse_input(content: bytes, number: int, name: str) -> TextOrConversation:
    """Conversation `number`, from 1, of those in a text; the text itself where it has none. Raises ValueError."""
    is_json = _is_json_of_conversations(decode(content, name))
    return _select(_inputs(Path(name), io.BytesIO(content), is_json), number, name)


def read_input_file(file: Path, number: int) -> TextOrConversation:
    """Conversation `number`, from 1, of a .json or .jsonl file, which may be compressed; else the file as one input.

    Raises ValueError with file and line.
    """
    with _opened(file) as (stream, is_json):
        if is_json:
            return _select(_inputs(file, stream, is_json), number, str(file))
        return parse_input(stream.read(MAX_INPUT_BYTES + 1), number, str(file))


def iter_inputs(file: Path) -> Iterator[tuple[str, TextOrConversation]]:
    """Place and content of each entry of a .json or .jsonl file, which may be compressed; any other is one text.

    Raises ValueError with file and line.
    """
    with _opened(file) as (stream, is_json):
        yield from ((place, _parse_entry(place, entry, inf)) for place, entry in _inputs(file, stream, is_json))


@contextmanager
def _opened(file: Path) -> Iterator[tuple[io.BufferedIOBase, bool]]:
    """The content of a file, and whether it is JSON by its name."""
    from chatmill.datasets.formats.row_readers import open_decompressed  # zstandard: 24 MB, which a chat does not need

    with open_decompressed(file) as stream:
        yield stream, not {".json", ".jsonl"}.isdisjoint(file.suffixes)


def text_or_messages(record: Record) -> str | Conversation:
    return unescape(record.text) if is_document(record.text) else parse(record.text)


def _is_json_of_conversations(text: str) -> bool:
    try:
        first, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return False
    entry = first[0] if isinstance(first, list) and first else first
    return isinstance(entry, dict) and not {"messages", "role", "text"}.isdisjoint(entry)


def _inputs(file: Path, stream: io.BufferedIOBase, is_json: bool) -> Iterator[tuple[str, Any]]:
    """The entries of JSON: those of a list, unless it is a list of messages, or the value itself; else the text."""
    if not is_json:
        yield str(file), decode(stream.read(), str(file), max_bytes=inf)
        return
    for place, value in values(file, stream, MAX_INPUT_BYTES):
        if isinstance(value, list) and not all(isinstance(one, dict) and "role" in one for one in value):
            yield from ((place, entry) for entry in value)
        else:
            yield place, value


def _select(entries: Iterable[tuple[str, Any]], number: int, name: str) -> TextOrConversation:
    for place, entry in islice(entries, number - 1, None):
        return _parse_entry(place, entry, MAX_TEXT_CHARACTERS)
    raise ValueError(f"{name}: no conversation {number}: the input has fewer")


def _parse_entry(place: str, content: Any, max_characters: float) -> TextOrConversation:
    with named_errors(place):
        if isinstance(content, dict) and isinstance(text := content.get("text"), str):
            if text.startswith(IM_START) and content.get("train") is not None:
                parse(text)
                return Record("", "", text, train=content["train"])
            if {"source", "group"} <= content.keys() and is_document(text):
                return Record("", "", text)
            content = text
        if not isinstance(content, str):
            from chatmill.datasets.formats import chats  # as above

            return chats.from_messages({"messages": content} if isinstance(content, list) else content)
        rendered = content.removeprefix(BOS)
        if rendered.startswith(IM_START):
            return parse(f"{rendered}\n" if rendered.endswith(IM_END) else rendered)
        if not 0 < len(content) <= max_characters:
            raise ValueError(f"expected a text of 1 to {MAX_TEXT_CHARACTERS:,} characters, got {len(content):,}")
        return content


def read_chat(file: Path, number: int) -> Conversation:
    """Conversation `number`, from 1, of a file. Raises ValueError with the place of what is no conversation."""
    try:
        from chatmill.datasets.formats import chats  # only a chat that is loaded needs it
    except ModuleNotFoundError as error:  # where only the packages for a chat are installed
        raise ValueError(f"{file}: to read it, {error.name} is needed: pip install {error.name}") from error
    content = read_input_file(file, number)
    content = text_or_messages(content) if isinstance(content, Record) else content
    try:
        conversation = chats.from_markers({"text": content.rstrip()}) if isinstance(content, str) else content
        check_turns(conversation)
        for part in (part for message in conversation for part in message.parts):
            check_text(part.text)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    return conversation


def read_numbered_chat(argument: str) -> tuple[str, Conversation]:
    """The file's name and the conversation of `FILE` or `FILE N`, as in /load. Raises ValueError with the remedy."""
    name, _, number = argument.rpartition(" ")
    if not (name and number.isdecimal()) or Path(os.path.expanduser(argument)).exists():
        name, number = argument, "1"
    try:
        return name, read_chat(Path(os.path.expanduser(name)), max(1, int(number)))
    except (OSError, ValueError) as error:
        raise ValueError(f"{error_line(error)}: load a chat that /save or --output wrote") from error
