"""What the terminal shows: numbers in words, text without control characters, wrapped, in columns and in tables."""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import TextIO

from wcwidth import ljust, rjust, wcswidth, wcwidth, width, wrap

StyledLine = list[tuple[str, str]]  # styles and texts


def format_size(num_bytes: int) -> str:
    """A number of bytes: 812 bytes, 7.2 MB, 15.1 GB."""
    if num_bytes < 1000:
        return f"{num_bytes} bytes"
    power = 1 if num_bytes < 999_950 else 2 if num_bytes < 999_950_000 else 3  # which would be shown as 1000.0
    return f"{num_bytes / 1000**power:.1f} {('kB', 'MB', 'GB')[power - 1]}"


def format_duration(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# Text without control characters.

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_DIRECTIONS = re.compile(r"[\u202a-\u202e\u2066-\u2069]")  # of text; in columns they would mix up what is beside it


def printable(text: str) -> str:
    """Replace control characters and separators other than tabs and newlines by symbols, which a terminal ignores."""

    return _CONTROLS.sub(_mark, text)


def _mark(match: re.Match[str]) -> str:
    code = ord(match[0])
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


def columns(headings: Sequence[str], texts: Sequence[str], width: int) -> Iterator[StyledLine]:
    column_width = width // len(texts)
    if column_width < MIN_COLUMN_WIDTH:
        for index, (heading, text) in enumerate(zip(headings, texts, strict=True)):
            yield from [[]] if index else []
            yield from ([("bold", line)] for line in wrap_text(heading, width))
            yield from ([("", line)] for line in wrap_text(text, width))
        return
    column_width -= len(SEPARATOR)
    yield from _column_rows([wrap_text(heading, column_width) for heading in headings], column_width, "bold")
    yield [("", "─┼─".join(["─" * column_width] * len(texts)))]
    yield from _column_rows([wrap_text(text, column_width) for text in texts], column_width, "")


def wrap_text(text: str, width: int) -> list[str]:
    """The lines of a text, none wider than `width`; control characters other than newlines are shown as symbols."""
    lines = _DIRECTIONS.sub(_mark, printable(text)).split("\n")
    return [piece for line in lines for piece in wrap(line, width, control_codes="ignore") or [""]]


def _column_rows(cells: Sequence[Sequence[str]], column_width: int, style: str) -> Iterator[StyledLine]:
    for row in zip_longest(*cells, fillvalue=""):
        fragments = [part for cell in row for part in (("", SEPARATOR), (style, ljust(cell, column_width)))]
        yield fragments[1:]


def aligned(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[StyledLine]:
    """A table under its caption: names aligned left, all other columns right."""
    table = [head, *rows]
    widths = [max(map(width, column)) for column in zip(*table, strict=True)]
    yield [("bold", caption)]
    for row in table:
        name, *cells = zip(row, widths, strict=True)
        line = "  ".join([ljust(*name), *(rjust(cell, size) for cell, size in cells)])
        yield [("italic" if row is head else "", line.rstrip())]


def print_lines(lines: Iterable[StyledLine], stream: TextIO) -> None:
    """Print lines, in colour where the stream is a terminal and NO_COLOR is not set."""
    if stream.isatty():
        from prompt_toolkit.formatted_text import FormattedText  # slow to import, and only colours need it
        from prompt_toolkit.shortcuts import print_formatted_text

        text = chain.from_iterable((*line, ("", "\n")) for line in lines)
        print_formatted_text(FormattedText(text), end="", file=stream)
        return
    for line in lines:
        print("".join(text for _, text in line).rstrip(), file=stream)
    stream.flush()


def notify(text: str, *, dim: bool = False) -> None:
    """Print a message on stderr, dim where requested and the terminal shows colours."""
    colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    start, end = ("\x1b[2m", "\x1b[0m") if dim and colours else ("", "")
    lines = wrap_text(text, shutil.get_terminal_size().columns) if sys.stderr.isatty() else [printable(text)]
    text = "\n".join(lines)
    print(f"{start}{text}{end}", file=sys.stderr, flush=True)
