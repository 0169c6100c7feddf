"""The result of parsing one row of a dataset: an `Example`, or a `Reject` that is counted."""

from dataclasses import dataclass
from typing import Any

from chatmill.conversation.chatml import Conversation

RawRow = tuple[str, Any]  # file and line, and the parsed entry


@dataclass(frozen=True, slots=True)
class Example:
    """A conversation and its place, such as `data/raw/chat.jsonl:2`.

    `group` is the name of its group where the format defines one (chatmill.datasets.split); with None, conversations
    with the same messages before the first answer form a group. `skill` says how the last answer is scored
    (chatmill.evaluation.skill_scoring, chatmill.evaluation.sense).
    """

    place: str
    group: str | None
    conversation: Conversation
    skill: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """An entry that is not a conversation; rejects are counted by `reason`, a short name, and `detail` is a message."""

    place: str
    reason: str
    detail: str


class UnusableRowError(ValueError):
    """Raised for an entry that cannot be converted to a conversation; it becomes a `Reject`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


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
        return "an object of " + (", ".join(repr(str(key)[:40]) for key in list(entry)[:8]) or "no keys")
    return f"a {type(entry).__name__}"
