"""The result of parsing one row of a dataset: an `Example` or a `Document`, or a `Reject` that is counted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from chatmill.conversation.chatml import Conversation, Message

RawRow = tuple[str, Any]  # file and line, and the parsed entry


class Extent(NamedTuple):
    """How much of a dataset: its messages as the dataset counts them, and the bytes of their text."""

    messages: int = 0
    bytes: int = 0


class Turn(NamedTuple):
    """A message of a conversation, and what the dataset says about it."""

    message: Message
    messages: int = 1  # of the dataset: calls of tools, their outputs and the answer are several, and one of ours
    train: bool | None = None  # None: as its role
    added: int = 0  # bytes that are not the dataset's, where messages were joined


class Dropped(NamedTuple):
    """A part of an entry that is left out of its conversation."""

    reason: str
    extent: Extent
    detail: str = ""


def as_turns(conversation: Iterable[Message]) -> list[Turn]:
    """The turns of a conversation whose messages are those of the dataset."""
    return [Turn(message) for message in conversation]


def extent_of(turns: Iterable[Turn]) -> Extent:
    """The extent of some turns."""
    messages = added = 0
    texts: list[str] = []
    for message, count, _, more in turns:
        messages += count
        added += more
        for part in message.parts:
            texts.append(part.text)
    return Extent(messages, num_bytes("".join(texts)) - added)


def total_extent(extents: Iterable[Extent]) -> Extent:
    """The extent of all together."""
    messages = size = 0
    for extent in extents:
        messages += extent.messages
        size += extent.bytes
    return Extent(messages, size)


@dataclass(frozen=True, slots=True)
class Example:
    """A conversation and its place, such as `data/raw/chat.jsonl:2`.

    `group` is the name of its group where the format defines one (chatmill.datasets.split); with None, conversations
    with the same messages before the first answer form a group. `skill` says how the last answer is scored
    (chatmill.evaluation.skill_scoring, chatmill.evaluation.sense). `dropped` is what the format left out, and `notes`
    are the rules by which it changed the entry.
    """

    place: str
    group: str | None
    turns: Sequence[Turn]
    skill: dict[str, Any] | None = None
    dropped: Sequence[Dropped] = ()
    notes: Sequence[str] = ()

    @property
    def conversation(self) -> Conversation:
        """The messages."""
        return [turn.message for turn in self.turns]


@dataclass(frozen=True, slots=True)
class Document:
    """A text without roles, or a part of one, and its place; `group` is that of all parts."""

    place: str
    group: str
    text: str


@dataclass(frozen=True, slots=True)
class Reject:
    """An entry that is not a conversation; rejects are counted by `reason`, a short name, and `detail` is a message.

    `messages` and `bytes` of text are those that could be recognised in it. With `part`, only they are left out, and
    the rest of the conversation remains.
    """

    place: str
    reason: str
    detail: str
    messages: int = 0
    bytes: int = 0
    part: bool = False


class UnusableRowError(ValueError):
    """Raised for an entry that cannot be converted to a conversation; it becomes a `Reject`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def num_bytes(text: str) -> int:
    """The number of bytes in UTF-8, where half a surrogate pair has three."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def text_of(entry: Any, key: str) -> str:
    """The text under a key of an entry. Raises UnusableRowError where there is none."""
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, str):
        raise UnusableRowError("missing_field", f"no text under {key!r} in {describe_value(entry)}")
    return value


def list_of(entry: Any, key: str) -> list[Any]:
    """The list under a key of an entry. Raises UnusableRowError where there is none."""
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, list):
        raise UnusableRowError("missing_field", f"no list under {key!r} in {describe_value(entry)}")
    return value


def describe_value(entry: Any) -> str:
    """The type of an entry and the first keys of an object, for messages."""
    if isinstance(entry, dict):
        return "an object of " + (", ".join(repr(str(key)[:40]) for key in list(entry)[:12]) or "no keys")
    names = {"NoneType": "null", "str": "text", "list": "a list", "bool": "true or false"}
    kind = type(entry).__name__
    return names.get(kind, f"the number {entry!r:.20}" if isinstance(entry, int | float) else f"a {kind}")
