"""Builds conversations from the turns of a dataset row."""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Literal

from chatmill.conversation.chatml import Conversation, Message, Part
from chatmill.datasets.formats.example import UnusableRowError, text_of

StepKind = Literal["system", "user", "assistant", "call", "output"]
Step = tuple[StepKind, str]
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


def instruction_pair(row: Any, input_key: str, output_key: str) -> Conversation:
    """The question is the row's `instruction` and, after a blank line, its input, if any; the answer is its output.

    Raises UnusableRowError.
    """
    instruction, reply = text_of(row, "instruction"), text_of(row, output_key)
    text = text_of(row, input_key) if row.get(input_key) else ""
    return question_answer(f"{instruction}\n\n{text}" if text else instruction, reply)


def alternate(texts: Sequence[str], system: str = "") -> Conversation:
    """A conversation of two speakers who alternate; the first is the user."""
    opening = [Message.from_text("system", system)] if system else []
    return opening + [Message.from_text(("user", "assistant")[index % 2], text) for index, text in enumerate(texts)]


def join_tools(steps: Iterable[Step]) -> Conversation:
    """A conversation in which calls, their outputs and the text after them are one message of the assistant.

    Outputs belong to the calls in order: call, call, output, output becomes call, output, call, output.
    """
    turns: list[tuple[str, list[list[Part]]]] = []  # role and parts, an output in one list with its call
    open_calls: deque[list[Part]] = deque()
    within = False  # after a call or an output the assistant's turn continues
    for kind, text in steps:
        role = "assistant" if kind in ("call", "output") else kind
        if not turns or turns[-1][0] != role or not (within or kind == "call"):
            turns.append((role, []))
            open_calls.clear()
        within = kind in ("call", "output")
        if kind == "output":
            if not open_calls:
                raise UnusableRowError("tool_order", "tool output without a call before it")
            open_calls.popleft().append(Part("output", text))
        elif kind == "call" or text:
            turns[-1][1].append([Part("call" if kind == "call" else "text", text)])
            open_calls.extend(turns[-1][1][-1:] if kind == "call" else ())
    return [Message(role, tuple(chain.from_iterable(parts))) for role, parts in turns]
