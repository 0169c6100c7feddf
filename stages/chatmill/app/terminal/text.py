"""What the terminal shows: numbers in words, text without control characters, wrapped, in columns and in tables."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import TextIO

from wcwidth import ljust, rjust, width, wrap

StyledLine = list[tuple[str, str]]  # styles and texts


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# Text without control characters.

_HIGH_CONTROLS = (*range(0x80, 0xA0), 0x2028, 0x2029, *range(0xD800, 0xE000))
_DIRECTIONS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))  # of text; they would mix up what is beside it
_MARKS = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: "␡"}
_MARKS |= {code: f"⟨U+{code:04X}⟩" for code in (*_HIGH_CONTROLS, *_DIRECTIONS)}


def printable(text: str) -> str:
    """Replace control characters and separators other than tabs and newlines by symbols, which a terminal ignores."""
    return text.translate(_MARKS)


def shorten(text: str, width: int) -> str:
    """A text on one line of at most `width` characters."""
    line = printable(text.replace("\n", " "))
    return line if len(line) <= width else f"{line[: width - 1]}…"


class WordWrap:
    """Breaks the lines of a text between words while it is printed in parts."""

    _line = ""  # the last line, as far as it is printed

    def feed(self, text: str, columns: int) -> str:
        """What to print for the next part of a text, which has no control characters but tabs and newlines.

        The last column stays free: what a cursor beyond it does differs between terminals.
        """
        return "".join(self._place(character, max(1, columns - 1)) for character in text)

    def _place(self, character: str, limit: int) -> str:
        if character == "\n":
            self._line = ""
            return character
        if width(self._line + character) <= limit:
            self._line += character
            return character
        word = re.split(r"[ \t]", self._line)[-1]
        if character in " \t":
            word = character = ""
        elif width(word + character) > limit:  # it is longer than a line
            word = ""
        self._line = word + character
        erased = f"\x1b[{width(word)}D\x1b[K" if word else ""  # go to the left, and erase to the end of the line
        return f"{erased}\n{self._line}"


# Texts side by side in columns of the terminal; where it is narrow, one below the other.

MIN_COLUMN_WIDTH = 30  # of a column and its separator
SEPARATOR = " │ "


def columns(headings: Sequence[str], texts: Sequence[str], width: int) -> Iterator[StyledLine]:
    size = width // len(texts) - len(SEPARATOR)
    if size + len(SEPARATOR) < MIN_COLUMN_WIDTH:
        for heading, text in zip(headings, texts, strict=True):
            yield from ([("bold", line)] for line in wrap_text(heading, width))
            yield from ([("", line)] for line in [*wrap_text(text, width), ""])
        return
    yield from _side_by_side(headings, size, "bold")
    yield [("", "─┼─".join(["─" * size] * len(texts)))]
    yield from _side_by_side(texts, size, "")


def _side_by_side(texts: Sequence[str], size: int, style: str) -> Iterator[StyledLine]:
    for row in zip_longest(*(wrap_text(text, size) for text in texts), fillvalue=""):
        yield [part for cell in row for part in (("", SEPARATOR), (style, ljust(cell, size)))][1:]


def wrap_text(text: str, width: int) -> list[str]:
    """The lines of a text, none wider than `width`; control characters other than newlines are shown as symbols."""
    lines = printable(text).split("\n")
    return [piece for line in lines for piece in wrap(line, width, control_codes="ignore") or [""]]


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
    if not stream.isatty():
        for line in lines:
            print("".join(text for _, text in line).rstrip(), file=stream, flush=True)
        return
    from prompt_toolkit.formatted_text import FormattedText  # slow to import, and only colours need it
    from prompt_toolkit.shortcuts import print_formatted_text

    text = chain.from_iterable((*line, ("", "\n")) for line in lines)
    print_formatted_text(FormattedText(text), end="", file=stream)


def notify(text: str, *, dim: bool = False) -> None:
    """Print a message on stderr, dim where requested and the terminal shows colours."""
    text = printable(text)
    if dim and sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        text = f"\x1b[2m{text}\x1b[0m"
    print(text, file=sys.stderr, flush=True)
