"""Tokens and tables in the terminal: each token over its id; in a conversation a rule shows its loss kind.

    user↵ What ·is  ·12 <|im_end|>  ↵
    590   318  301  98  2042        10

    assistant↵ ·36 <|im_end|>
    611        402 2042
               ━━━ ━━━━━━━━━━

Colours show the same as the rules, where the output is a terminal and NO_COLOR is not set.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TextIO

from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.shortcuts import print_formatted_text
from prompt_toolkit.utils import get_cwidth

from chatmill.conversation.template import LossKind
from chatmill.report.token_view import LOSS_NAMES, Token, visible

RULES = {LossKind.TRAINED: "━", LossKind.PROMPT: " ", LossKind.IGNORED: "┄", None: " "}
DARK = "#10151a"
LOSS_STYLES = {LossKind.TRAINED: f"bg:#a6dfbb {DARK}", LossKind.PROMPT: f"bg:#d9dce1 {DARK}", LossKind.IGNORED: ""}
CYCLE = tuple(f"bg:{color} {DARK}" for color in ("#b9d6f2", "#f8cfae", "#b5e3c6", "#e6c3ea", "#ece0a0"))

StyledLine = list[tuple[str, str]]  # styles and texts


class _Cell(NamedTuple):
    """A token as it is printed, and the label below it; `width` in columns."""

    text: str
    label: str
    width: int
    style: str
    rule: str
    ends_line: bool


def print_lines(lines: Iterable[StyledLine], stream: TextIO) -> None:
    """Print lines, in colour where the stream is a terminal and NO_COLOR is not set."""
    if stream.isatty():
        text = chain.from_iterable((*line, ("", "\n")) for line in lines)
        print_formatted_text(FormattedText(text), end="", file=stream)
        return
    try:
        for line in lines:
            print("".join(text for _, text in line).rstrip(), file=stream)
        stream.flush()
    except BrokenPipeError:  # as in `chatmill show … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def grid(tokens: Sequence[Token], columns: int, labels: Sequence[str] | None = None) -> Iterator[StyledLine]:
    """Three lines for each row of tokens; a row begins after a newline, and where a token would not fit.

    `labels` stand below the tokens instead of their ids.
    """
    labels = [str(token.id) for token in tokens] if labels is None else labels
    for row in _rows(map(_cell, range(len(tokens)), tokens, labels), columns):
        yield _spaced((cell.style, _padded(cell.text, cell.width)) for cell in row)
        yield [("", " ".join(_padded(cell.label, cell.width) for cell in row).rstrip())]
        yield [("", " ".join(cell.rule * min(cell.width, columns) for cell in row).rstrip())]


def legend(tokens: Sequence[Token]) -> StyledLine:
    """The meaning of the rules and colours of a conversation, and the number of tokens of each."""
    counts = {loss: sum(token.loss == loss for token in tokens) for loss in LOSS_NAMES}
    return _spaced(
        (LOSS_STYLES[loss], f" {f'{RULES[loss]} {name}'.strip()} {counts[loss]} ") for loss, name in LOSS_NAMES.items()
    )


def aligned(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[StyledLine]:
    """A table under its caption: names aligned left, all other columns right."""
    table = [head, *rows]
    widths = [max(map(get_cwidth, column)) for column in zip(*table, strict=True)]
    yield [("bold", caption)]
    for row in table:
        name, *cells = zip(row, widths, strict=True)
        line = "  ".join([_padded(*name), *(" " * (width - get_cwidth(cell)) + cell for cell, width in cells)])
        yield [("italic" if row is head else "", line.rstrip())]


def _cell(index: int, token: Token, label: str) -> _Cell:
    text = visible(token.content)
    style = CYCLE[index % len(CYCLE)] if token.loss is None else LOSS_STYLES[token.loss]
    return _Cell(
        text=text,
        label=label,
        width=max(get_cwidth(text), get_cwidth(label)),
        style=f"{style} bold" if token.is_control else style,
        rule=RULES[token.loss],
        ends_line=token.content.endswith(b"\n"),
    )


def _rows(cells: Iterable[_Cell], columns: int) -> Iterator[list[_Cell]]:
    row: list[_Cell] = []
    used = 0
    for cell in cells:
        if row and (row[-1].ends_line or used + cell.width > columns):
            yield row
            row, used = [], 0
        row.append(cell)
        used += cell.width + 1
    if row:
        yield row


def _spaced(fragments: Iterable[tuple[str, str]]) -> StyledLine:
    return [part for fragment in fragments for part in (fragment, ("", " "))][:-1]


def _padded(text: str, width: int) -> str:
    return text + " " * (width - get_cwidth(text))
