r"""Chats on disk: JSON lines of `messages`, a dataset format that `prepare` reads.

    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}

Calls of the calculator and their outputs are written as `tool_calls` and messages of the role `tool`. All messages
are written, also those that were dropped from the context. An exchange whose answer is empty is left out, as it is no
training data.
"""

import json
import os
from collections.abc import Iterator
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from chatmill.app.named_models import read_input_file, text_or_messages
from chatmill.conversation import Conversation, Message, Record, check_turns
from chatmill.pipeline.processes import error_line
from chatmill.tokenizer.encoding.chat_tokenizer import check_text


class Transcript:
    """A new file `name`, or one in that folder named by the time: a chat a line, complete after every answer."""

    def __init__(self, name: str) -> None:
        """Creates the folders, but not the file. Raises ValueError or OSError where the file could not be written."""
        folder, _ = _folder_and_names(name)
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise ValueError(f"{folder}: no permission to write: choose another folder for --output")
        self.file: Path | None = None
        self._name, self._previous_lines, self._line = name, "", ""

    def write(self, conversation: Conversation) -> None:
        if (line := to_json_line(conversation)) != self._line:
            self.file = self.file or create_file(self._name)
            _replace(self.file, self._previous_lines + line)
            self._line = line

    def start_conversation(self) -> None:
        self._previous_lines, self._line = self._previous_lines + self._line, ""


def to_json_line(conversation: Conversation) -> str:
    """The exchanges whose answer is not empty, as one line; "" without any. `read_chat` reads it."""
    system = [message for message in conversation if message.role == "system"]
    turns = conversation[len(system) :]
    exchanges = [
        pair for pair in zip(turns[::2], turns[1::2], strict=False) if any(p.text.strip() for p in pair[1].parts)
    ]
    if not exchanges:
        return ""
    messages = [
        entry for message in [*system, *(one for pair in exchanges for one in pair)] for entry in _entries(message)
    ]
    return json.dumps({"messages": messages}, ensure_ascii=False) + "\n"


def _entries(message: Message) -> Iterator[dict[str, Any]]:
    for part in message.parts:
        if part.kind == "text":
            yield {"role": message.role, "content": part.text}
        elif part.kind == "call":
            function = {"name": "calculator", "arguments": json.dumps({"expression": part.text}, ensure_ascii=False)}
            yield {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        else:
            yield {"role": "tool", "content": part.text}


def save_chat(conversation: Conversation, name: str) -> Path:
    """Write a conversation to a file, or into a folder, and return the file. Raises ValueError where it is empty."""
    if not (line := to_json_line(conversation)):
        raise ValueError("the conversation is empty: there is nothing to save")
    file = create_file(name)
    _replace(file, line)
    return file


def create_file(name: str) -> Path:
    """Create an empty file; in a folder it is named by the time. Raises ValueError where it exists."""
    folder, names = _folder_and_names(name)
    folder.mkdir(parents=True, exist_ok=True)
    for file in (folder / one for one in names or _timestamped_names()):
        try:
            file.open("x").close()
        except FileExistsError:
            continue
        return file
    raise _exists(folder / names[0])


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
    if not (name and number.isdecimal()) or expand_path(argument).exists():
        name, number = argument, "1"
    try:
        return name, read_chat(expand_path(name), max(1, int(number)))
    except (OSError, ValueError) as error:
        raise ValueError(f"{error_line(error)}: load a chat that /save or --output wrote") from error


def expand_path(name: str) -> Path:
    """The path of a name, with `~` replaced by the home folder. Raises ValueError where there is no such user."""
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{name}: no such home folder") from error


def _folder_and_names(name: str) -> tuple[Path, list[str]]:
    """The folder in which to write, and the file's name, if it has one. Raises ValueError where the file exists."""
    path = expand_path(name)
    if path.is_dir() or name.endswith(("/", os.sep)):
        return path, []
    if path.exists():
        raise _exists(path)
    return path.parent, [path.name]


def _exists(file: Path) -> ValueError:
    return ValueError(f"{file} already exists and is not overwritten: choose another name, or a folder")


def _timestamped_names() -> Iterator[str]:
    """chat-20260131-154500.jsonl, chat-20260131-154500-2.jsonl …"""
    stem = f"chat-{datetime.now():%Y%m%d-%H%M%S}"
    yield f"{stem}.jsonl"
    yield from (f"{stem}-{number}.jsonl" for number in count(2))


def _replace(file: Path, text: str) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
