"""Numbers formatted for the terminal."""

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

from wcwidth import ljust, wcswidth, wcwidth, wrap

StyledLine = list[tuple[str, str]]  # styles and texts


def format_size(num_bytes: int) -> str:
    """A number of bytes: 812 bytes, 7.2 MB, 15.1 GB."""
    if num_bytes < 1000:
        return f"{num_bytes} bytes"
    power = 1 if num_bytes < 1e6 else 2 if num_bytes < 1e9 else 3
    return f"{num_bytes / 1000**power:.1f} {('kB', 'MB', 'GB')[power - 1]}"


def format_duration(seconds: float) -> str:
    """A duration: 12 ms, 3.4 s."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def plural(number: int, noun: str) -> str:
    """A number with its noun: 1 token, 2 tokens."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# Text without control characters.

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    """Replace control characters other than tabs and newlines by visible symbols, so that a terminal ignores them."""
    return _CONTROLS.sub(lambda match: _mark(ord(match[0])), text)


def _mark(code: int) -> str:
    return "␡" if code == 0x7F else chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"


# Breaks the lines of a streamed text between words.

TAB = 8  # columns from one stop to the next
ERASE = "\x1b[{}D\x1b[K"  # move to the left by so many columns, and erase what follows


class WordWrap:
    """The state of a text that begins at the left edge: its last line, as far as it is printed.

    `columns` is asked for the width of the terminal, which may change meanwhile.
    """

    def __init__(self, columns: Callable[[], int] = lambda: shutil.get_terminal_size().columns) -> None:
        self._columns = columns
        self._column = 0
        self._word = ""  # since the last space of the line

    def feed(self, text: str) -> str:
        """What to print for the next part of a text, which has no control characters but tabs and newlines.

        The last column stays free: what a cursor beyond it does differs between terminals.
        """
        limit = max(1, self._columns() - 1)
        return "".join(self._place(character, limit) for character in text)

    def _place(self, character: str, limit: int) -> str:
        if character == "\n":
            return self._break_line("")
        width = TAB - self._column % TAB if character == "\t" else max(0, wcwidth(character))
        before = ""
        if self._column + width > limit:
            if character in " \t":
                return self._break_line("")
            length = max(0, wcswidth(self._word))
            moved = self._word if length < self._column and length + width <= limit else ""
            before = (ERASE.format(length) if moved else "") + self._break_line(moved)
        self._column += width
        self._word = "" if character in " \t" else self._word + character
        return before + character

    def _break_line(self, moved: str) -> str:
        self._word, self._column = moved, max(0, wcswidth(moved))
        return f"\n{moved}"


# Texts side by side in columns of the terminal; where it is narrow, one below the other.

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
