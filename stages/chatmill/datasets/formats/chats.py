r"""The named formats of conversations, as they are published; each is a function from an entry to its conversation.

`messages` is OpenAI's and Hugging Face's, in JSON lines or a JSON array:

    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}

Content is text, or a list of `{"type": "text", "text": …}`; a row may have a `system` text beside `messages`. Calls in
`tool_calls` and results of the role `tool` become tool use inside the assistant's turn. A call of the function
`calculator` is stored as its `expression`, any other call as JSON. Of `tools` the names are kept, as a declaration
(chatmill.conversation.declare_tools). Reasoning and descriptions of tools are left out. `weight: 0` of a message
leaves it untrained. Rows of the form `{"prompt": …, "completion": …}`, and rows that are
lists of messages, are read as well.
"""

import re
from collections.abc import Iterator
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

from chatmill.conversation import Conversation, Message, Part
from chatmill.datasets.formats.example import (
    RawRow,
    Reject,
    UnusableRowError,
    alternate,
    check_turn_count,
    describe_value,
    split_turns,
    text_of,
)
from chatmill.datasets.formats.mapping import REPLIES, USUAL_NAMES, Columns, TableMapping
from chatmill.datasets.formats.row_readers import json_rows, paragraphs
from chatmill.datasets.formats.table import MARK_START, TableReader, UnknownRoleError, reader_of
from chatmill.datasets.formats.trees import grow

_MESSAGES = reader_of(messages="messages", system="system", tools="tools")
_LISTS = reader_of(messages=".")
_PAIRS = reader_of(prompt="prompt", response="completion")


def messages_reader(row: Any) -> TableReader:
    """The reader of this row by its form: an object with messages, one with a prompt and a completion, or a list."""
    if isinstance(row, list) and row:
        return _LISTS
    return _PAIRS if isinstance(row, dict) and "messages" not in row and "prompt" in row else _MESSAGES


def from_messages(row: Any) -> Conversation:
    try:
        return [turn.message for turn in messages_reader(row).turns(row, [])]
    except UnknownRoleError as error:
        expected = ", ".join(names[0] for names in USUAL_NAMES.values())
        raise UnusableRowError(error.reason, f"unknown role {error.names[0]!r}: expected one of {expected}") from error


def from_dailydialog(line: str) -> Conversation:
    """DailyDialog's text: one dialogue per line, each turn ended by ` __eou__`; the first speaker is the user."""
    turns = split_turns(f" {line}", "__eou__")
    if not turns[-1].strip():
        turns.pop()
    return alternate([turn.removeprefix(" ").removesuffix(" ") for turn in turns])


def from_chitchat(row: Any) -> Conversation:
    """BYU's chitchat dataset: bursts of messages, of which those of one sender in a row are a turn."""
    messages: list[tuple[str, str]] = []
    bursts = row.get("messages") if isinstance(row, dict) else None
    for burst in bursts if isinstance(bursts, list) else [bursts]:
        if not isinstance(burst, list):
            raise UnusableRowError("missing_field", f"messages: expected lists of lists in {describe_value(row)}")
        check_turn_count(len(messages) + len(burst))
        messages += [(text_of(message, "sender"), text_of(message, "text")) for message in burst]
    turns = groupby(messages, key=lambda message: message[0])
    return alternate(["\n".join(text for _, text in turn) for _, turn in turns])


# GSM8K's problems, whose calculator annotations become tool use.

_CALL = re.compile(r"<<([^<>]*)=([^<>=]*)>>")
_NUMBER = re.compile(r"-?\d*\.?\d+|-?\d+\.")


def from_gsm8k(row: Any) -> Conversation:
    question, answer = text_of(row, "question"), text_of(row, "answer")
    check_turn_count(answer.count("<<"))  # the limit on turns is that on calls, too
    pieces = _CALL.split(answer)  # text, expression, result, text, expression, result, …, text
    parts = []
    for index, piece in enumerate(pieces):
        if index % 3 == 2 and not _NUMBER.fullmatch(piece):
            raise UnusableRowError("bad_call", f"the result of <<{pieces[index - 1]}={piece}>> is not a number")
        if piece or index % 3:
            parts.append(Part(("text", "call", "output")[index % 3], piece))
    return [Message.from_text("user", question), Message("assistant", tuple(parts))]


# The older format, in which plain words mark the turns.

HEADINGS = re.compile(r"\A(?:\s*#[^\n:]*\n)+\s*")
ROLES = {"System": "system", "Human": "user", "User": "user", "Assistant": "assistant"}
_LINE = re.compile(rf"(?:\A|\n{{1,2}}){MARK_START}(System|Human|User|Assistant)(?:\1:|:\1) ?")
_PARAGRAPH = re.compile(r"(?:\A|\n\n)()(Human|Assistant): ?")
_BREAK = re.compile(r"\s*([-*_])(\s*\1){2,}\s*")  # of Markdown, between two conversations
_SPREAD = TableReader(
    TableMapping(
        columns=Columns(messages="turns"),
        roles={"system": "System", "user": ("Human", "User"), "assistant": "Assistant"},
    )
)


def marker_rows(file: Path) -> Iterator[RawRow | Reject]:
    """The rows of a JSON file, or the paragraphs of a text file.

    Where most have one turn alone, as in Markdown, a conversation goes to the end of the file, or to a line of dashes.
    """
    if any(suffix in (".json", ".jsonl") for suffix in file.suffixes):
        yield from json_rows(file)
        return
    some = [row[1] for row in islice(paragraphs(file), 100) if not isinstance(row, Reject)]
    counts = [len(_LINE.findall(text)) for text in some if _LINE.match(text)]
    is_spread = 2 * counts.count(1) > len(counts)
    for row in paragraphs(file, is_end=_BREAK.fullmatch) if is_spread else paragraphs(file):
        if isinstance(row, Reject):
            yield row
        elif row[1].strip():
            yield row[0], {"turns": HEADINGS.sub("", row[1])} if is_spread else {"text": row[1]}


def from_markers(row: Any) -> Conversation:
    if isinstance(row, dict) and "turns" in row:
        return [turn.message for turn in _SPREAD.turns(row, [])]
    return _marked_turns(text_of(row, "text"), _LINE)


def from_hh(row: Any) -> Conversation:
    return _marked_turns(text_of(row, "chosen"), _PARAGRAPH)


def _marked_turns(text: str, marker: re.Pattern[str]) -> Conversation:
    pieces = marker.split(text)  # what precedes the first marker, emphasis, role, text, emphasis, role, text, …
    if pieces[0].strip() or len(pieces) == 1:
        raise UnusableRowError("no_marker", f"expected a turn to start with a marker such as Human:, not {text[:40]!r}")
    check_turn_count(len(pieces) // 3)
    return [Message.from_text(ROLES[role], said) for role, said in zip(pieces[2::3], pieces[3::3], strict=True)]


def from_personachat(row: Any) -> Conversation:
    """A row with a chat and perhaps a persona, or with question and answer; its reader lower-cased the names."""
    if "chat" in row:
        return alternate(split_turns(row["chat"].removesuffix("\n"), "\n"), row.get("persona", ""))
    if "question" in row and "answer" in row:
        return alternate([row["question"], row["answer"]])
    expected = "expected a column 'chat', or 'question' and 'answer'"
    raise UnusableRowError("missing_field", f"{expected}, got {describe_value(row)}")


def from_text(paragraph: str) -> Conversation:
    """Plain text: each line is a turn, a blank line ends the conversation, and the first speaker is the user."""
    return alternate(split_turns(paragraph, "\n"))


# OpenAssistant's message trees, in JSON lines: flat messages in the order of their trees, or one tree per line.

_MESSAGE = {"content": "text", "rank": "rank", "deleted": "deleted"}
_ROW = Columns.model_validate({"id": "message_id", "parent": "parent_id", "tree": "message_tree_id", **_MESSAGE})
_GROWN = TableReader(TableMapping(columns=_ROW).nested())
_TREE, _PROMPT = (reader_of(messages=root, replies="replies", **_MESSAGE) for root in (".", "prompt"))


def oasst_rows(file: Path) -> Iterator[RawRow | Reject]:
    """The trees of a file, each as its first message with `replies`, or as an object with that as `prompt`."""
    parts = groupby(json_rows(file), _is_flat)
    return chain.from_iterable(grow(part, _ROW) if is_flat else part for is_flat, part in parts)


def _is_flat(row: RawRow | Reject) -> bool:
    """Whether a row is one message of a tree, or a reject, which may stand between those."""
    return isinstance(row, Reject) or (
        isinstance(row[1], dict) and "message_tree_id" in row[1] and "prompt" not in row[1]
    )


def oasst_reader(row: Any) -> TableReader:
    if isinstance(row, dict) and "prompt" in row:
        return _PROMPT
    return _GROWN if isinstance(row, dict) and REPLIES in row else _TREE
