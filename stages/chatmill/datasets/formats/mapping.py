"""The mapping of a table's columns to the parts of a conversation: `columns` and `roles` in params.yaml.

    format: table
    columns: {messages: utterances, role: speaker, content: text}
    roles: {user: [customer], assistant: [agent]}

A column is a key of the row, or a path of keys and places in lists (`choices.0.text`); `.` is the row itself.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from chatmill.datasets.formats.example import UnusableRowError, describe_value, num_bytes

Column = Annotated[str, Field(min_length=1)]
Speaker = Literal["system", "user", "assistant", "call", "output", "ignore"]
Roles = Mapping[Speaker, str | tuple[str, ...]]
USUAL_NAMES: dict[Speaker, tuple[str, ...]] = {
    "system": ("system", "developer"),
    "user": ("user", "human", "prompter"),
    "assistant": ("assistant", "gpt", "bot", "chatbot", "model"),
    "call": ("function_call", "tool_call"),
    "output": ("tool", "function", "observation", "tool_response", "ipython"),
}
OPTIONAL = ("query", "system", "history", "tools", "rejected", "group", "language")  # may be missing in some rows
OPTIONAL_IN_MESSAGES = ("train", "replies", "rank", "deleted")  # may be missing in some messages
_SHAPES: dict[tuple[str, ...], set[str]] = {  # the columns of each shape of rows, and others that it may have
    ("messages",): {"replies", "rank", "deleted"},
    ("prompt", "response"): {"query", "history"},
    ("prompt", "chosen"): {"query", "history"},
    ("id", "parent"): {"tree", "rank", "deleted"},
    ("conversation",): {"order"},
    ("text",): set(),
}
_OF_ANY_SHAPE = ("system", "tools", "rejected", "group", "language", "train")  # but of text
REPLIES = "replies by parent"  # the key of the replies to a message, where trees are made of rows
MESSAGES = "messages by conversation"  # the key of the messages, where conversations are made of rows
TRAIN_FIELDS = ("weight", "train")  # of OpenAI's and of other messages
FIELDS = ("tool_calls", "function_call", "tool_call_id", *TRAIN_FIELDS)  # that are read where a message has them
_PLACE = re.compile(r"[0-9]{1,9}")  # in a list
MISSING = object()  # stands for the value of a column that a row must have


class Columns(BaseModel, extra="forbid", frozen=True):
    """Where the parts of a conversation are: `messages`, or `prompt` and `response` (or `chosen`), or `text`.

    In trees of messages (chatmill.datasets.formats.trees) `messages` is the first one, which has `replies`; or each row
    is a message with an `id` and a `parent`.
    """

    messages: Column | None = None  # a list of messages, of texts whose speakers alternate, or one text with marks
    role: Column = "role"  # of a message
    content: Column = "content"  # of a message
    train: Column | None = None  # of a message: whether it is trained; by default `weight` or `train`, where it has one
    replies: Column | None = None  # of a message: those to it, each of which has its own
    id: Column | None = None  # of a row that is a message
    parent: Column | None = None  # the id of the message to which it replies; the first one of a tree has none
    tree: Column | None = None  # equal in the rows of one tree, which follow each other
    conversation: Column | None = None  # equal in the rows of one conversation, each of which is a message
    order: Column | None = None  # of such a row: a number or a date; without it they are in order
    rank: Column | None = None  # of a reply: the best one has the lowest
    deleted: Column | None = None  # of a message: whether it is left out, and what replies to it
    prompt: Column | None = None
    query: Column | None = None  # follows the prompt after a blank line, where it is not empty
    response: Column | None = None
    history: Column | None = None  # pairs of texts before the prompt
    chosen: Column | None = None  # the better one of two responses
    rejected: Column | None = None  # the other one, which is counted and left out
    system: Column | None = None
    text: Column | None = None  # of a document, which has no roles
    tools: Column | None = None  # whose names are declared
    group: Column | None = None  # rows with an equal value are on the same side of the split
    language: Column | None = None

    @model_validator(mode="after")
    def _fit_together(self) -> "Columns":
        given = {*self.model_dump(exclude_none=True)} - {"role", "content"}
        shape = next((shape for shape in _SHAPES if given.issuperset(shape)), None)
        if shape is None:
            raise ValueError(f"expected {', or '.join(' and '.join(shape) for shape in _SHAPES)}")
        others = {"group"} if self.text else _SHAPES[shape] | {*_OF_ANY_SHAPE}
        if odd := given - {*shape} - others:
            raise ValueError(f"{' and '.join(shape)} and {min(odd)}: expected beside them {', '.join(sorted(others))}")
        if (self.rank or self.deleted) and not (self.replies or self.parent):
            raise ValueError("rank and deleted need replies, or id and parent")
        return self

    @property
    def is_of_one_message(self) -> bool:
        """Whether each row is a message, which `trees.grow` joins with others."""
        return self.parent is not None or self.conversation is not None

    def named(self) -> dict[str, str]:
        """The columns of a row that the mapping names, by what they are for."""
        of_messages = ("role", "content", *OPTIONAL_IN_MESSAGES)
        return {name: column for name, column in self.model_dump(exclude_none=True).items() if name not in of_messages}


class TableMapping(BaseModel, extra="forbid", frozen=True):
    columns: Columns
    roles: Roles | None = None
    first: Literal["user", "assistant"] | None = None  # who begins where texts alternate, or names are not in roles
    turn_separator: Annotated[str, Field(min_length=1)] | None = None  # between the turns of one text
    languages: tuple[str, ...] | None = None  # rows in others are counted and left out

    def nested(self) -> "TableMapping":
        """The same mapping of what `trees.grow` makes of rows which are messages."""
        root: dict[str, str | None] = {}
        if self.columns.conversation is not None:
            root = {"messages": MESSAGES, "conversation": None, "order": None}
        elif self.columns.parent is not None:
            root = {"messages": ".", "replies": REPLIES, "id": None, "parent": None, "tree": None}
        return self.model_copy(update={"columns": self.columns.model_copy(update=root)})

    def marks(self) -> list[str]:
        """The names that mark turns of a text: those in `roles` alone if these have the user and the assistant."""
        own = _speakers_by_name(self.roles)
        return list(own if {"user", "assistant"} <= {*own.values()} else self.speakers())

    def speakers(self) -> dict[str, Speaker]:
        """The speakers by the names that stand for them, in lower case; `roles` goes before the usual names."""
        return _speakers_by_name(USUAL_NAMES) | _speakers_by_name(self.roles)


def value_at(entry: Any, column: str, default: Any = MISSING) -> Any:
    """The value of a column, at a path of keys and places in lists, or of the row itself, which is `.`.

    Raises UnusableRowError with the columns that are there, unless there is a default.
    """
    if column == ".":
        return entry
    if isinstance(entry, dict) and column in entry:
        return entry[column]
    if isinstance(entry, dict) and "." not in column and default is not MISSING:
        return default
    value = entry
    for key in column.split("."):
        if isinstance(value, list):
            value = value[int(key)] if _PLACE.fullmatch(key) and int(key) < len(value) else MISSING
        else:
            value = value.get(key, MISSING) if isinstance(value, dict) else MISSING
        if value is MISSING:
            if default is not MISSING:
                return default
            raise UnusableRowError("missing_field", f"no column {column!r} in {describe_value(entry)}")
    return value


def _speakers_by_name(roles: Roles | None) -> dict[str, Speaker]:
    """The speaker that each name stands for, in lower case; of two with one name, the first."""
    result: dict[str, Speaker] = {}
    for speaker, values in (roles or {}).items():
        for value in (values,) if isinstance(values, str) else values:
            result.setdefault(value.lower(), speaker)
    return result


def content_bytes(content: Any) -> int:
    """The bytes of text in any content, readable or not."""
    if isinstance(content, list):
        return sum(content_bytes(part.get("text", part.get("value"))) for part in content if isinstance(part, dict))
    return num_bytes(content) if isinstance(content, str) else 0
