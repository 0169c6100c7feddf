"""Reads large JSON documents entry by entry, so that memory holds one entry at a time.

ijson does not fit: it gives no line numbers, and rejects integers over 64 bits.
"""

import codecs
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chatmill.datasets.formats.example import Reject

_READ_BYTES = 1 << 18
_decode = json.JSONDecoder().raw_decode
_blanks = re.compile(r"[ \t\r\n]*").match
_FIRST_KEY = re.compile(r'\{\s*("(?:[^"\\]|\\.)*")\s*:').match


def parse_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error


def entries(
    file: Path, stream: io.BufferedIOBase, limit: int, *, open_arrays: bool = False
) -> Iterator[tuple[str, str | None, Any] | Reject]:
    """Place, key and value of each entry of an object or array; in an array the keys are None.

    With `open_arrays` the values of an object that are arrays are iterators of their own entries, of which those not
    taken before the next one of the object are skipped.

    An entry of an array that is not JSON becomes a reject if the next one can be found, which begins with the key of
    the first one. Otherwise raises ValueError with file and line, and so for an entry longer than `limit` characters.
    """
    text = _JsonStream(file, stream, limit)
    match text.peek():
        case "[":
            yield from _array_entries(text)
        case "{":
            yield from _object_entries(text, open_arrays)
        case _:
            raise text.error("expected a JSON array or object")
    text.check_end()


def values(file: Path, stream: io.BufferedIOBase, limit: int) -> Iterator[tuple[str, Any]]:
    """Place and value of each of several concatenated JSON values. Raises ValueError as `entries` does."""
    text = _JsonStream(file, stream, limit)
    while text.peek():
        yield text.place, text.value()


def _object_entries(text: "_JsonStream", open_arrays: bool) -> Iterator[tuple[str, str, Any]]:
    text.take()
    separator = text.take() if text.peek() == "}" else ","
    while separator == ",":
        text.peek()
        place, key = text.place, text.value()
        if not isinstance(key, str) or text.take() != ":":
            raise text.error("expected a key and ':'")
        if open_arrays and text.peek() == "[":
            array = _array_entries(text)
            yield place, key, array
            for _ in array:
                pass
        else:
            yield place, key, text.value()
        separator = text.take()
    if separator != "}":
        raise text.error("expected ',' or '}'")


def _array_entries(text: "_JsonStream") -> Iterator[tuple[str, None, Any] | Reject]:
    text.take()
    text.first_key = None
    separator = text.take() if text.peek() == "]" else ","
    while separator == ",":
        text.peek()
        place = text.place
        try:
            yield place, None, text.value()
            separator = text.take()
            if separator not in (",", "]"):
                raise text.error("expected ',' or ']'")
        except BrokenEntryError as error:
            separator = text.skip_entry(error)
            problem = str(error).removeprefix(f"{place}: ")
            yield Reject(place, "bad_json", problem.replace(f"{text.file}:", "line ", 1))


class BrokenEntryError(ValueError):
    """Raised for text that is not JSON, or longer than memory may hold."""


class _JsonStream:
    def __init__(self, file: Path, stream: io.BufferedIOBase, limit: int) -> None:
        self.file, self._limit = file, limit
        self._stream, self._decoder = stream, codecs.getincrementaldecoder("utf-8-sig")()
        self._buffer, self._position = "", 0
        self._line = 1  # at the position
        self.first_key: re.Pattern[str] | None = None  # where a later entry of an array begins

    @property
    def place(self) -> str:
        return f"{self.file}:{self._line}"

    def error(self, problem: str, position: int = 0) -> BrokenEntryError:
        line = self._line + self._buffer.count("\n", self._position, position)
        return BrokenEntryError(f"{self.file}:{line}: not JSON: {problem}")

    def check_end(self) -> None:
        if self.peek():
            raise self.error("more text after the JSON document")

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
        """Consume and return the next JSON value. Raises BrokenEntryError, and then stays where it is."""
        self.peek()
        if self.first_key is None and (key := _FIRST_KEY(self._buffer, self._position)):
            self.first_key = re.compile(rf"[,}}\]]\s*(?=\{{\s*{re.escape(key[1])}\s*:)")
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

    def skip_entry(self, error: BrokenEntryError) -> str:
        """Go on to the next text that begins as the first entry did, or to the end of a file that ends the array.

        Returns the separator before it. Raises the error where there is neither.
        """
        while self.first_key is not None:
            if found := self.first_key.search(self._buffer, self._position + 1):
                self._advance(found.end())
                return ","
            if not self._more():
                if not self._buffer.rstrip().endswith("]"):
                    break
                self._advance(len(self._buffer))
                return "]"
        raise error

    def _advance(self, position: int) -> None:
        self._line += self._buffer.count("\n", self._position, position)
        self._position = position

    def _more(self) -> bool:
        """Read more text and drop what was consumed; False at the end of the file, where nothing changes."""
        length = len(self._buffer) - self._position
        if length > self._limit:
            raise BrokenEntryError(f"{self.place}: not JSON, or an entry longer than {self._limit:,} characters")
        try:
            data = self._stream.read(max(_READ_BYTES, length))
            text = self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.place}: not UTF-8 here or soon after") from error
        if data:
            self._buffer, self._position = self._buffer[self._position :] + text, 0
        return bool(data)
