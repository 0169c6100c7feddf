"""Reads protobuf messages where they lie in a file: https://protobuf.dev/programming-guides/encoding/.

Nothing is copied, so that the weights of a graph stay on disk; and a file that is made to be slow to parse is refused.
"""

import mmap
from collections.abc import Mapping

VARINT, BYTES, FIXED32 = 0, 2, 5  # the wire types
MAX_FIELDS, MAX_NAME_BYTES = 1 << 17, 1 << 10  # of a graph of 100 layers: 60,000, and 60

Span = tuple[int, int]  # the first byte, and the one after the last


class Message:
    """The fields of a message, each a list, by their numbers."""

    def __init__(self, reader: "MessageReader", numbers: dict[int, list[int]], spans: dict[int, list[Span]]) -> None:
        self._reader, self._numbers, self._spans = reader, numbers, spans

    def integers(self, field: int) -> list[int]:
        """The values of a field of signed numbers."""
        return [value - (1 << 64) if value >> 63 else value for value in self._numbers[field]]

    def integer(self, field: int) -> int:
        """The only value of such a field."""
        (value,) = self.integers(field)
        return value

    def names(self, field: int) -> list[str]:
        """The values of a field of names."""
        return [self._reader.read(span, MAX_NAME_BYTES).decode() for span in self._spans[field]]

    def name(self, field: int) -> str:
        """The only value of such a field, or an empty one."""
        (value,) = self.names(field) or [""]
        return value

    def span(self, field: int) -> Span:
        """The place of the only value of a field of bytes."""
        (span,) = self._spans[field]
        return span

    def messages(self, field: int, kinds: Mapping[int, int]) -> list["Message"]:
        """The messages in a field, of which `kinds` are the permitted fields with their wire types."""
        return [self._reader.message(span, kinds) for span in self._spans[field]]

    def message(self, field: int, kinds: Mapping[int, int]) -> "Message":
        """The only message in a field."""
        (found,) = self.messages(field, kinds)
        return found


class MessageReader:
    """Reads messages with permitted fields alone. Raises ValueError for others, and for a file with too many."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._remaining = data, MAX_FIELDS

    def read(self, span: Span, limit: int) -> bytes:
        """The bytes in a place, if they are few."""
        if span[1] - span[0] > limit:
            raise ValueError(f"{span[1] - span[0]:,} bytes: expected at most {limit:,}")
        return self._data[slice(*span)]

    def message(self, span: Span, kinds: Mapping[int, int]) -> Message:
        """The message in a place."""
        numbers: dict[int, list[int]] = {field: [] for field in kinds}
        spans: dict[int, list[Span]] = {field: [] for field in kinds}
        at, end = span
        while at < end:
            key, at = self._varint(at, end)
            field, kind = key >> 3, key & 7
            self._remaining -= 1
            if kinds.get(field) != kind or self._remaining < 0:
                raise ValueError(f"unexpected field {field} at byte {at}")
            value, at = self._varint(at, end) if kind != FIXED32 else (4, at)
            if kind == VARINT:
                numbers[field].append(value)
                continue
            spans[field].append((at, at + value))
            at += value
        if at > end:
            raise ValueError(f"its message ends at byte {end}, a field in it later")
        return Message(self, numbers, spans)

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """A number in seven bits a byte, the lowest first, and the place after it."""
        value = 0
        for shift in range(0, 70, 7):
            if at >= end:
                raise ValueError(f"its message ends at byte {end}, a number in it later")
            byte = self._data[at]
            value, at = value | (byte & 0x7F) << shift, at + 1
            if byte < 0x80:
                return value & (1 << 64) - 1, at
        raise ValueError(f"no number at byte {at}")
