"""Conversations from the plain lists of turns that dataset formats hold."""

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
    """The row's `instruction`, after a blank line what is under the key `material`, if anything, and the answer.

    Raises Unusable.
    """
    instruction, reply = text_of(row, "instruction"), text_of(row, output_key)
    given = text_of(row, input_key) if row.get(input_key) else ""
    return question_answer(f"{instruction}\n\n{given}" if given else instruction, reply)


def alternate(texts: Sequence[str], system: str = "") -> Conversation:
    """Two speakers in turn; the one who opens is the user."""
    opening = [Message.from_text("system", system)] if system else []
    return opening + [Message.from_text(("user", "assistant")[index % 2], text) for index, text in enumerate(texts)]


def join_tools(steps: Iterable[Step]) -> Conversation:
    """Messages in which calls, their outputs and the text that follows them stand inside one assistant turn.

    Outputs belong to the calls in order: call, call, output, output becomes call, output, call, output.
    """
    turns: list[tuple[str, list[Part]]] = []
    within = False  # after a call or an output the assistant's turn goes on
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
    """The first call that has no output."""
    for index, part in enumerate(parts):
        if part.kind == "call" and (index + 1 == len(parts) or parts[index + 1].kind != "output"):
            return index
    raise UnusableRowError("tool_order", "a tool's output without a call before it")
