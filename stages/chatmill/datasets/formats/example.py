"""What a format makes of one entry of its file: an `Example` to keep, or a `Reject` to count."""

from dataclasses import dataclass
from typing import Any

from chatmill.conversation.chatml import Conversation

RawRow = tuple[str, Any]  # where an entry stands, and what is written there


@dataclass(frozen=True, slots=True)
class Example:
    """A conversation, and where it stands: `data/raw/chat.jsonl:2`.

    `group` is the whole name of its group, for a format that knows what belongs together; None groups the
    conversations of a source that open alike. `skill` says how its answer is scored
    (chatmill.evaluation.skill_scoring).
    """

    place: str
    group: str | None
    conversation: Conversation
    skill: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """An entry that is no conversation: `reason` is one of few words that are counted, `detail` a sentence."""

    place: str
    reason: str
    detail: str


class UnusableRowError(ValueError):
    """Raised by a format for an entry that it cannot turn into a conversation; it becomes a `Reject`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def text_of(entry: Any, key: str) -> str:
    """The text under a key of an entry. Raises Unusable where there is none."""
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, str):
        raise UnusableRowError("missing_field", f"no text under {key!r} in {describe_value(entry)}")
    return value


def list_of(entry: Any, key: str) -> list[Any]:
    """The list under a key of an entry. Raises Unusable where there is none."""
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, list):
        raise UnusableRowError("missing_field", f"no list under {key!r} in {describe_value(entry)}")
    return value


def describe_value(entry: Any) -> str:
    """A few words on what an entry is, for messages."""
    if isinstance(entry, dict):
        return "an object of " + (", ".join(repr(str(key)[:40]) for key in list(entry)[:8]) or "no keys")
    return f"a {type(entry).__name__}"
