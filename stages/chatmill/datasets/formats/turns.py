"""Builds conversations from the turns of a dataset row."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from chatmill.conversation.chatml import Conversation, Message, Part
from chatmill.datasets.formats.example import UnusableRowError, text_of

StepKind = Literal["system", "user", "assistant", "call", "output"]
Step = tuple[StepKind, str]


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
    turns: list[tuple[str, list[Part]]] = []
    within = False  # after a call or an output the assistant's turn continues
    for kind, text in steps:
        role = "assistant" if kind in ("call", "output") else kind
        if not turns or turns[-1][0] != role or not (within or kind == "call"):
            turns.append((role, []))
        parts = turns[-1][1]
        within = kind in ("call", "output")
        if kind == "output":
            parts.insert(_open_call(parts) + 1, Part("output", text))
        elif kind == "call":
            parts.append(Part("call", text))
        elif text:
            parts.append(Part("text", text))
    return [Message(role, tuple(parts)) for role, parts in turns]


def _open_call(parts: Sequence[Part]) -> int:
    """The index of the first call without an output."""
    for index, part in enumerate(parts):
        if part.kind == "call" and (index + 1 == len(parts) or parts[index + 1].kind != "output"):
            return index
    raise UnusableRowError("tool_order", "tool output without a call before it")
