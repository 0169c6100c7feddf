r"""Breaks the lines of a streamed text between words.

    in 10 columns:  feed("A long ") + feed("sente") + feed("nce")  ->  "A long sente" with the last word moved:
    "A long se" "\x1b[2D\x1b[K" "\n" "sente" "nce"

Each character is printed at once: a word that reaches the edge is erased there and printed on the next line.
"""

import shutil
from collections.abc import Callable

from wcwidth import wcswidth, wcwidth

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
