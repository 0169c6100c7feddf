"""Reads large JSON documents entry by entry, so that memory holds one entry at a time.

Other parsers do not fit: ijson gives no line numbers, rejects integers over 64 bits, replaces half a surrogate pair by
`?`, and fills the memory on 100 kB of opening brackets; pydantic_core reads only complete documents, and takes the last
of several values under one key.
"""

import codecs
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chatmill.datasets.formats.example import Reject

_READ_BYTES = 1 << 18
_blanks = re.compile(r"[ \t\r\n]*").match
_FIRST_KEY = re.compile(r'\{\s*("(?:[^"\\]|\\.)*")\s*:')


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice = next(key for key, number in Counter(key for key, _ in pairs).items() if number > 1)
        raise DuplicateKeyError(f"the key {twice[:40]!r} twice in one object")
    return result


class DuplicateKeyError(ValueError):
    """Raised for an object with one key twice, of which one value would get lost."""


_decoder = json.JSONDecoder(object_pairs_hook=_object)
_decode = _decoder.raw_decode


def parse_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError."""
    try:
        return _decoder.decode(text)
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error


def entries(file: Path, stream: io.BufferedIOBase, limit: int) -> Iterator[tuple[str, str | None, Any] | Reject]:
    """Place, key and value of each entry of an object or array; in an array the keys are None.

    An entry of an array that is not JSON becomes a reject if the next one can be found, which begins with the key of
    the first one. Otherwise raises ValueError with file and line, and so for an entry longer than `limit` characters.
    """
    text = _JsonStream(file, stream, limit)
    begin = text.take()
    if begin not in ("[", "{"):
        raise text.error("expected a JSON array or object")
    yield from _array_entries(text) if begin == "[" else _object_entries(text)
    _check_end(text)


def members(file: Path, stream: io.BufferedIOBase, limit: int) -> Iterator[tuple[str, str, Any]]:
    """Place, key and value of each entry of an object, where an array is an iterator of its entries as `entries` gives.

    Those that are not taken before the next member are skipped. Raises ValueError as `entries` does.
    """
    text = _JsonStream(file, stream, limit)
    if text.take() != "{":
        raise text.error("expected a JSON object")
    yield from _object_entries(text, open_arrays=True)
    _check_end(text)


def _check_end(text: "_JsonStream") -> None:
    if text.peek():
        raise text.error("more text after the JSON document")


def _object_entries(text: "_JsonStream", *, open_arrays: bool = False) -> Iterator[tuple[str, str, Any]]:
    separator = text.take() if text.peek() == "}" else ","
    while separator == ",":
        text.peek()
        place, key = text.place, text.value()
        if not isinstance(key, str) or text.take() != ":":
            raise text.error("expected a key and ':'")
        if open_arrays and text.peek() == "[":
            text.begin_array()
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
    if text.peek() == "]":
        text.take()
        return
    while True:
        text.peek()
        place = text.place
        try:
            yield place, None, text.value()
            if (separator := text.take()) == "]":
                return
            if separator != ",":
                raise BrokenEntryError(str(text.error("expected ',' or ']'")))
        except BrokenEntryError as error:
            is_last = not text.skip_to_entry()
            if is_last and not text.ends_with("]"):
                raise
            yield Reject(place, "bad_json", _without_file(str(error), place))
            if is_last:
                return


def _without_file(problem: str, place: str) -> str:
    """A problem without its place, if that is the entry's, or else with its line alone."""
    rest = problem.removeprefix(f"{place}: ")
    file = place[: place.rindex(":") + 1]
    return f"line {rest.removeprefix(file)}" if rest.startswith(file) else rest


def values(file: Path, stream: io.BufferedIOBase, limit: int) -> Iterator[tuple[str, Any]]:
    """Place and value of each of several concatenated JSON values. Raises ValueError as `entries` does."""
    text = _JsonStream(file, stream, limit)
    while text.peek():
        yield text.place, text.value()


class BrokenEntryError(ValueError):
    """Raised for a value that is not JSON."""


class _JsonStream:
    def __init__(self, file: Path, stream: io.BufferedIOBase, limit: int) -> None:
        self._file, self._stream, self._limit = file, stream, limit
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._buffer, self._position, self._bytes = "", 0, 0
        self._line, self._counted = 1, 0  # newlines are counted up to here in the buffer
        self._start: re.Pattern[str] | None = None  # of an entry, by the first one's first key

    @property
    def place(self) -> str:
        self._line += self._buffer.count("\n", self._counted, self._position)
        self._counted = self._position
        return f"{self._file}:{self._line}"

    def error(self, problem: str) -> ValueError:
        return ValueError(f"{self.place}: not JSON: {problem}")

    def peek(self) -> str:
        while True:
            if blanks := _blanks(self._buffer, self._position):
                self._position = blanks.end()
            if self._position < len(self._buffer):
                return self._buffer[self._position]
            if not self._more():
                return ""

    def take(self) -> str:
        character = self.peek()
        self._position += len(character)
        return character

    def begin_array(self) -> None:
        """Consume the bracket of an array, whose entries may begin with another key than earlier values."""
        self.take()
        self._start = None

    def value(self) -> Any:
        """Consume and return the next JSON value. Raises BrokenEntryError, and then stays where it is.

        A value at the end of the buffer may continue in the file, and so may a number before `.` or `e`.
        """
        self.peek()
        if self._start is None and (key := _FIRST_KEY.match(self._buffer, self._position)):
            self._start = re.compile(rf"[,}}\]]\s*(?=\{{\s*{re.escape(key[1])}\s*:)")
        while True:
            try:
                value, end = _decode(self._buffer, self._position)
            except json.JSONDecodeError as error:
                if not self._more():
                    raise self._broken(error.msg, error.pos) from error
            except (ValueError, RecursionError) as error:  # two equal keys, a number with too many digits, deep nesting
                raise self._broken(str(error), self._position) from error
            else:
                if self._buffer[end : end + 1] not in ("", ".", "e", "E") or not self._more():
                    self._position = end
                    return value

    def _broken(self, problem: str, position: int) -> BrokenEntryError:
        line = self._line + self._buffer.count("\n", self._counted, position)
        return BrokenEntryError(f"{self._file}:{line}: not JSON: {problem}")

    def skip_to_entry(self) -> bool:
        """Go on to the next text that begins as an entry does; False if there is none in what memory may hold."""
        while self._start is not None:
            if found := self._start.search(self._buffer, self._position + 1):
                self._position = found.end()
                return True
            try:
                if not self._more():
                    return False
            except BrokenEntryError:
                return False
        return False

    def ends_with(self, closing: str) -> bool:
        """Whether nothing is to be read, and this character is the last one; all before it is then consumed."""
        if self._stream.read(1) or not self._buffer.rstrip().endswith(closing):
            return False
        self._position = len(self._buffer)
        return True

    def _more(self) -> bool:
        """Read more text and drop what was consumed; False at the end of the file, where nothing changes."""
        if len(self._buffer) - self._position > self._limit:
            raise BrokenEntryError(f"{self.place}: not JSON, or an entry longer than {self._limit:,} characters")
        data = self._stream.read(max(_READ_BYTES, len(self._buffer) - self._position))
        self._bytes += len(data)
        try:
            text = self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            at = self._bytes - len(error.object) + error.start
            raise ValueError(f"{self._file}: not UTF-8 at byte {at}") from error
        if data:
            self._line += self._buffer.count("\n", self._counted, self._position)
            self._buffer, self._position, self._counted = self._buffer[self._position :] + text, 0, 0
        return bool(data)


# The rows of a JSON file that is one object, which holds them by name, or in lists.
