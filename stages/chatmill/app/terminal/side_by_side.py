"""Texts side by side in columns of the terminal; where it is narrow, one below the other.

A data/export/onnx │ B short-run
───────────────────┼───────────────────
Why did the        │ I am
scarecrow win?     │
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from wcwidth import ljust, wrap

from chatmill.app.terminal.printable import printable
from chatmill.app.terminal.token_grid import StyledLine

MIN_COLUMN_WIDTH = 30  # of a column and its separator
SEPARATOR = " │ "
ESCAPED_CHARACTERS = {
    code: f"⟨U+{code:04X}⟩" for code in (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def columns(headings: Sequence[str], texts: Sequence[str], width: int) -> Iterator[StyledLine]:
    """The lines of texts under their headings, for a terminal of `width` columns."""
    column_width = width // len(texts)
    if column_width < MIN_COLUMN_WIDTH:
        for index, (heading, text) in enumerate(zip(headings, texts, strict=True)):
            yield from [[]] if index else []
            yield from ([("bold", line)] for line in wrap_text(heading, width))
            yield from ([("", line)] for line in wrap_text(text, width))
        return
    column_width -= len(SEPARATOR)
    yield from _rows([wrap_text(heading, column_width) for heading in headings], column_width, "bold")
    yield [("", "─┼─".join(["─" * column_width] * len(texts)))]
    yield from _rows([wrap_text(text, column_width) for text in texts], column_width, "")


def wrap_text(text: str, width: int) -> list[str]:
    """The lines of a text, none wider than `width`; control characters other than newlines are shown as symbols."""
    lines = printable(text).translate(ESCAPED_CHARACTERS).split("\n")
    return [piece for line in lines for piece in wrap(line, width, control_codes="ignore") or [""]]


def _rows(cells: Sequence[Sequence[str]], column_width: int, style: str) -> Iterator[StyledLine]:
    for row in zip_longest(*cells, fillvalue=""):
        fragments = [part for cell in row for part in (("", SEPARATOR), (style, ljust(cell, column_width)))]
        yield fragments[1:]
