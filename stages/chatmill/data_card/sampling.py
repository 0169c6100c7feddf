"""Reads some of the records of a file of any size, evenly over it."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from chatmill.conversation.chatml import Record
from chatmill.pipeline.parts import open_parts, size_of

MAX_BYTES = 10_000_000  # of the records together, about
MAX_READ_BYTES = 64_000_000  # of a file that is read as a whole


def sample_records(file: Path, count: int) -> list[Record]:
    """At most `count` records, in their order.

    A small file is read as a whole, and as many records of each source are taken as there is room for. Of a large one
    those after evenly spaced bytes are taken. Raises ValueError with the byte of a line that is not a record.
    """
    if size_of(file) > MAX_READ_BYTES:
        return list(_spaced_records(file, count))
    by_source: defaultdict[str, list[tuple[int, Record]]] = defaultdict(list)
    with open_parts(file) as stream:
        place = 0
        for line in stream:
            record = _parse(file, place, line)
            by_source[record.source].append((place, record))
            place += len(line)
    chosen: list[tuple[int, Record]] = []
    for number, records in enumerate(sorted(by_source.values(), key=len)):
        room = (count - len(chosen)) // (len(by_source) - number)
        chosen += _evenly(records, room)
    return [record for _, record in sorted(_within_bytes(chosen), key=lambda one: one[0])]


def _evenly(records: list[tuple[int, Record]], count: int) -> list[tuple[int, Record]]:
    if len(records) <= count:
        return records
    return [records[number * len(records) // count] for number in range(count)]


def _within_bytes(records: list[tuple[int, Record]]) -> list[tuple[int, Record]]:
    """The records, or evenly chosen ones of them that have about MAX_BYTES together."""
    size = sum(len(record.text) for _, record in records)
    return records if size <= MAX_BYTES else _evenly(records, max(1, len(records) * MAX_BYTES // size))


def _spaced_records(file: Path, count: int) -> Iterator[Record]:
    step, read = size_of(file) / count, 0
    with open_parts(file) as stream:
        for number in range(count):
            stream.seek(max(0, int(number * step) - 1))
            if number:
                stream.readline()  # the rest of a line, or the end of the one before
            place = stream.tell()
            line = stream.readline()
            read += len(line)
            if not line or read > MAX_BYTES:
                return
            yield _parse(file, place, line)


def _parse(file: Path, place: int, line: bytes) -> Record:
    try:
        return Record(**json.loads(line))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: near byte {place}: not a record of a conversation: {error}") from error
