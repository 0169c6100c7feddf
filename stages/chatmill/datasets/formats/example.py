"""The result of parsing one row of a dataset: an `Example` or a `Document`, or a `Reject` that is counted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, NamedTuple

from chatmill.conversation import ROLES, Conversation, Message, Part, declare_tools

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
    return [Turn(message) for message in conversation]


def extent_of(turns: Iterable[Turn]) -> Extent:
    messages = added = 0
    texts: list[str] = []
    for message, count, _, more in turns:
        messages += count
        added += more
        for part in message.parts:
            texts.append(part.text)
    return Extent(messages, num_bytes("".join(texts)) - added)


@dataclass(frozen=True, slots=True)
class Example:
    """A conversation and its place, such as `data/raw/chat.jsonl:2`.

    `group` is the name of its group where the format defines one (chatmill.datasets.split); with None, conversations
    with the same messages before the first answer form a group. `skill` says how the last answer is scored
    (chatmill.evaluation.answering). `dropped` is what the format left out, and `notes` are the rules by which it
    changed the entry. `names` are those of persons who speak.
    """

    place: str
    group: str | None
    turns: list[Turn]
    skill: dict[str, Any] | None = None
    dropped: Sequence[Dropped] = ()
    notes: Sequence[str] = ()
    names: Sequence[str] = ()

    @property
    def conversation(self) -> Conversation:
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
        self.reason, self.extent = reason, Extent()

    def reject(self, place: str) -> Reject:
        return Reject(place, self.reason, str(self), *self.extent)


def num_bytes(text: str) -> int:
    """The number of bytes in UTF-8, where half a surrogate pair has three."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def text_of(entry: Any, key: str) -> str:
    """The text under a key of an entry. Raises UnusableRowError where there is none."""
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, str):
        raise UnusableRowError("missing_field", f"no text under {key!r} in {describe_value(entry)}")
    return value


def describe_value(entry: Any) -> str:
    """The type of an entry and the first keys of an object, for messages."""
    if isinstance(entry, dict):
        return "an object of " + (", ".join(repr(str(key)[:40]) for key in list(entry)[:12]) or "no keys")
    names = {"NoneType": "null", "str": "text", "list": "a list", "bool": "true or false"}
    kind = type(entry).__name__
    return names.get(kind, f"the number {entry!r:.20}" if isinstance(entry, int | float) else f"a {kind}")


# Builds conversations from the turns of a dataset row.

StepKind = Literal["system", "user", "assistant", "call", "output"]


class Step(NamedTuple):
    """A text, a call of a tool or its output, and whether it is trained."""

    kind: StepKind
    text: str
    messages: int = 1  # of the dataset: 0 for what is in the same one as the step before
    train: bool | None = None
    id: str | None = None  # of a call, or of the call to which an output belongs

    @property
    def role(self) -> str:
        return self.kind if self.kind in ROLES else "assistant"


MAX_TURNS = 100_000  # of a conversation; each takes a hundred times the memory of a short text


def split_turns(text: str, mark: str) -> list[str]:
    """The texts around a mark. Raises UnusableRowError for more than MAX_TURNS, before they take memory."""
    check_turn_count(text.count(mark) + 1)
    return text.split(mark)


def check_turn_count(count: int) -> None:
    if count > MAX_TURNS:
        raise UnusableRowError("too_long", f"{count:,} turns: expected at most {MAX_TURNS:,}")


def alternate(texts: Sequence[str], system: str = "") -> Conversation:
    """A conversation of two speakers who alternate; the first is the user."""
    opening = [Message.from_text("system", system)] if system else []
    return opening + [Message.from_text(("user", "assistant")[index % 2], text) for index, text in enumerate(texts)]


def join_tools(steps: Sequence[Step]) -> list[Turn]:
    """The turns in which calls, their outputs and the text after them are one message of the assistant.

    Outputs belong to the calls by their ids, and without ids in order: call, call, output, output becomes call, output,
    call, output.
    """
    if all(step.kind in ROLES for step in steps):  # no tools, which is faster
        return [Turn(Message.from_text(step.kind, step.text), step.messages, step.train) for step in steps]
    groups: list[list[Step]] = []
    for step in steps:
        last = groups[-1][-1] if groups else None
        if last and last.role == step.role and (last.kind not in ROLES or step.kind == "call"):
            groups[-1].append(step)
        else:
            groups.append([step])
    return list(map(_joined_turn, groups))


def _joined_turn(steps: Sequence[Step]) -> Turn:
    """The turn of some steps. Raises UnusableRowError where one is trained and another one is not."""
    flags = {step.train for step in steps if step.kind != "output"} - {None}
    if len(flags) > 1:
        raise UnusableRowError("mixed_flags", "a call and the answer after it: expected both trained, or none")
    parts: list[list[Part]] = []  # each call with its output
    open_calls: list[tuple[str | None, list[Part]]] = []
    for kind, text, _, _, name in steps:
        if kind == "output":
            open_calls.pop(_index_of_call(open_calls, name))[1].append(Part("output", text))
        elif kind == "call":
            if name and any(name == other for other, _ in open_calls):
                raise UnusableRowError("call_id", f"two calls have the id {name!r:.60}")
            parts.append([Part("call", text)])
            open_calls.append((name, parts[-1]))
        elif text:
            parts.append([Part("text", text)])
    message = Message(steps[0].role, join_texts(chain.from_iterable(parts)))
    return Turn(message, sum(step.messages for step in steps), next(iter(flags), None))


def _index_of_call(open_calls: Sequence[tuple[str | None, list[Part]]], call_id: str | None) -> int:
    """The place of the call to which an output belongs: by its id, or without ids the first that has none yet.

    Raises UnusableRowError where there is no such call.
    """
    ids = [own for own, _ in open_calls]
    if call_id in ids:
        return ids.index(call_id)
    if not ids:
        raise UnusableRowError("tool_order", "tool output without a call before it, or the second one of a call")
    if call_id and any(ids):
        found = ", ".join(f"{own!r:.60}" for own in ids)
        raise UnusableRowError(
            "call_id", f"tool output of the call {call_id!r:.60}: expected one of {found}, each once"
        )
    return 0


def join_texts(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The parts of a message, of which adjacent texts are one."""
    result: list[Part] = []
    for part in parts:
        if part.kind == "text" and result and result[-1].kind == "text":
            part = Part("text", result.pop().text + part.text)
        result.append(part)
    return tuple(result)


def declare(turns: list[Turn], names: list[str]) -> list[Turn]:
    """The turns with these tools declared in a system message; the bytes of that are counted as added."""
    first, *others = declare_tools([turn.message for turn in turns], names)
    if len(others) == len(turns):  # there was no system message
        return [Turn(first, messages=0, added=num_bytes(first.text)), *turns]
    added = num_bytes(first.text) - num_bytes(turns[0].message.text)
    return [turns[0]._replace(message=first, added=turns[0].added + added), *turns[1:]]
