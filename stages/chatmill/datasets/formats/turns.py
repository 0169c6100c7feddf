"""Builds conversations from the turns of a dataset row."""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Literal, NamedTuple

from chatmill.conversation.chatml import Conversation, Message, Part, declare_tools
from chatmill.datasets.formats.example import Turn, UnusableRowError, extent_of, num_bytes

StepKind = Literal["system", "user", "assistant", "call", "output"]


class Step(NamedTuple):
    """A text, a call of a tool or its output, and whether it is trained."""

    kind: StepKind
    text: str
    messages: int = 1  # of the dataset: 0 for what is in the same one as the step before
    train: bool | None = None


MAX_TURNS = 100_000  # of a conversation; each takes a hundred times the memory of a short text


def split_turns(text: str, mark: str) -> list[str]:
    """The texts around a mark. Raises UnusableRowError for more than MAX_TURNS, before they take memory."""
    check_turn_count(text.count(mark) + 1)
    return text.split(mark)


def check_turn_count(count: int) -> None:
    """Raise UnusableRowError for more than MAX_TURNS."""
    if count > MAX_TURNS:
        raise UnusableRowError("too_long", f"{count:,} turns: expected at most {MAX_TURNS:,}")


def question_answer(question: str, answer: str) -> Conversation:
    """One question and its answer."""
    return [Message.from_text("user", question), Message.from_text("assistant", answer)]


def alternate(texts: Sequence[str], system: str = "") -> Conversation:
    """A conversation of two speakers who alternate; the first is the user."""
    opening = [Message.from_text("system", system)] if system else []
    return opening + [Message.from_text(("user", "assistant")[index % 2], text) for index, text in enumerate(texts)]


def join_tools(steps: Iterable[Step]) -> list[Turn]:
    """The turns in which calls, their outputs and the text after them are one message of the assistant.

    Outputs belong to the calls in order: call, call, output, output becomes call, output, call, output.
    """
    turns: list[_OpenTurn] = []
    open_calls: deque[list[Part]] = deque()
    within = False  # after a call or an output the assistant's turn continues
    for kind, text, count, train in steps:
        role = "assistant" if kind in ("call", "output") else kind
        if not turns or turns[-1].role != role or not (within or kind == "call"):
            turns.append(_OpenTurn(role))
            open_calls.clear()
        within = kind in ("call", "output")
        turns[-1].add(count, None if kind == "output" else train)
        if kind == "output":
            if not open_calls:
                raise UnusableRowError("tool_order", "tool output without a call before it")
            open_calls.popleft().append(Part("output", text))
        elif kind == "call" or text:
            turns[-1].parts.append([Part("call" if kind == "call" else "text", text)])
            open_calls.extend(turns[-1].parts[-1:] if kind == "call" else ())
    return [turn.close() for turn in turns]


class _OpenTurn:
    """A turn to which steps are added, each output in one list with its call."""

    def __init__(self, role: str) -> None:
        self.role, self.count = role, 0
        self.train: bool | None = None
        self.parts: list[list[Part]] = []

    def add(self, count: int, train: bool | None) -> None:
        """Count a step. Raises UnusableRowError where one is trained and another one is not."""
        self.count += count
        if train is not None:
            if self.train not in (None, train):
                raise UnusableRowError("mixed_flags", "a call and the answer after it: expected both trained, or none")
            self.train = train

    def close(self) -> Turn:
        """The turn, with adjacent texts joined."""
        return Turn(Message(self.role, join_texts(chain.from_iterable(self.parts))), self.count, self.train)


def join_texts(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The parts of a message, of which adjacent texts are one."""
    result: list[Part] = []
    for part in parts:
        if part.kind == "text" and result and result[-1].kind == "text":
            part = Part("text", result.pop().text + part.text)
        result.append(part)
    return tuple(result)


def declare(turns: list[Turn], names: list[str]) -> list[Turn]:
    """The turns with these tools declared in the system message, which is none of the dataset's if there was none."""
    before = extent_of(turns).bytes
    messages = declare_tools([turn.message for turn in turns], names)
    if len(messages) > len(turns):
        return [Turn(messages[0], 0, None, num_bytes(messages[0].text)), *turns]
    first = turns[0]._replace(message=messages[0])
    return [first._replace(added=extent_of([first, *turns[1:]]).bytes - before), *turns[1:]]
