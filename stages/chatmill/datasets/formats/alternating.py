"""Texts whose speakers alternate: a list, two lists, or one text with a separator between them."""

from collections.abc import Iterator, Sequence
from typing import Any

from chatmill.datasets.formats.example import UnusableRowError
from chatmill.datasets.formats.mapping import Columns
from chatmill.datasets.formats.message_content import check_text
from chatmill.datasets.formats.turns import Step, StepKind, check_turn_count


def are_texts(value: Any) -> bool:
    """Whether a value is a list that begins with a text."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], str)


def order(first: StepKind) -> tuple[StepKind, StepKind]:
    """The two speakers, in the order in which they begin."""
    return ("user", "assistant") if first == "user" else ("assistant", "user")


def alternating(texts: Sequence[Any], first: StepKind) -> Iterator[Step]:
    """The steps of the texts of two speakers. Raises UnusableRowError for what is no text."""
    for number, text in enumerate(texts):
        yield Step(order(first)[number % 2], check_text(text, f"text {number + 1}"))


def exchanges(questions: Any, answers: Any, columns: Columns) -> Iterator[Step]:
    """The steps of the texts in `columns.prompt`, each before the one of the answer at its place.

    Each is a list, or the only text. Raises UnusableRowError where one has more.
    """
    asked, given = (value if isinstance(value, list) else [value] for value in (questions, answers))
    check_turn_count(len(asked) + len(given))
    if len(asked) != len(given):
        counts = f"{len(asked):,} in {columns.prompt} and {len(given):,} in {columns.answer}"
        raise UnusableRowError("unequal_lists", f"expected as many answers as questions, got {counts}")
    return alternating([text for pair in zip(asked, given, strict=True) for text in pair], "user")


def split_texts(text: str, separator: str) -> list[str]:
    """The texts around a separator, each without the white space around it; an empty one at the end is left out."""
    check_turn_count(text.count(separator) + 1)
    turns = [turn.strip() for turn in text.split(separator)]
    return turns if turns[-1] else turns[:-1]
