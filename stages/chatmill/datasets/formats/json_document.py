"""Reads large JSON arrays, and values one after another, so that memory holds one entry at a time.

ijson does not fit: it gives no line numbers, and rejects integers over 64 bits.
"""

import codecs
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chatmill.datasets.formats.example import RawRow

_READ_BYTES = 1 << 18
_decode = json.JSONDecoder().raw_decode
_blanks = re.compile(r"[ \t\r\n]*").match


def parse_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error


def values(file: Path, stream: io.BufferedIOBase, limit: int) -> Iterator[RawRow]:
    """Place and value of each of several concatenated JSON values.

    Raises ValueError with file and line for what is not JSON, or longer than `limit` characters.
    """
    text = _JsonStream(file, stream, limit)
    while text.peek():
        yield text.place, text.value()


def array_entries(file: Path, stream: io.BufferedIOBase, limit: int) -> Iterator[RawRow]:
    """Place and value of each entry of an array. Raises ValueError as `values` does."""
    text = _JsonStream(file, stream, limit)
    text.take()
    separator = text.take() if text.peek() == "]" else ","
    while separator == ",":
        text.peek()
        yield text.place, text.value()
        separator = text.take()
    if separator != "]":
        raise text.error("expected ',' or ']'")
    if text.peek():
        raise text.error("more text after the JSON document")


class _JsonStream:
    def __init__(self, file: Path, stream: io.BufferedIOBase, limit: int) -> None:
        self.file, self._limit = file, limit
        self._stream, self._decoder = stream, codecs.getincrementaldecoder("utf-8-sig")()
        self._buffer, self._position = "", 0
        self._line = 1  # at the position

    @property
    def place(self) -> str:
        return f"{self.file}:{self._line}"

    def error(self, problem: str, position: int = 0) -> ValueError:
        line = self._line + self._buffer.count("\n", self._position, position)
        return ValueError(f"{self.file}:{line}: not JSON: {problem}")

    def peek(self) -> str:
        """The next character that is not blank, or nothing at the end of the file."""
        while True:
            if found := _blanks(self._buffer, self._position):
                self._advance(found.end())
            if self._position < len(self._buffer):
                return self._buffer[self._position]
            if not self._more():
                return ""

    def take(self) -> str:
        character = self.peek()
        self._position += len(character)
        return character

    def value(self) -> Any:
        """Consume and return the next JSON value."""
        self.peek()
        while True:
            try:
                value, end = _decode(self._buffer, self._position)
            except json.JSONDecodeError as error:
                if not self._more():
                    raise self.error(error.msg, error.pos) from error
            except (ValueError, RecursionError) as error:  # a number with too many digits, deep nesting
                raise self.error(str(error)) from error
            else:
                # at the end of the buffer a value may go on in the file, and a number before `.` or `e`
                if self._buffer[end : end + 1] not in ("", ".", "e", "E") or not self._more():
                    self._advance(end)
                    return value

    def _advance(self, position: int) -> None:
        self._line += self._buffer.count("\n", self._position, position)
        self._position = position

    def _more(self) -> bool:
        """Read more text and drop what was consumed; False at the end of the file, where nothing changes."""
        length = len(self._buffer) - self._position
        if length > self._limit:
            raise ValueError(f"{self.place}: not JSON, or an entry longer than {self._limit:,} characters")
        try:
            data = self._stream.read(max(_READ_BYTES, length))
            text = self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.place}: not UTF-8 here or soon after") from error
        if data:
            self._buffer, self._position = self._buffer[self._position :] + text, 0
        return bool(data)
