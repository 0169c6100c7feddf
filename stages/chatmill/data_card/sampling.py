"""Reads some of the records of a file of any size, evenly over it."""

import json
from itertools import islice
from pathlib import Path

from chatmill.conversation.chatml import Record

MAX_BYTES = 10_000_000  # of all lines together, about


def sample_records(file: Path, count: int) -> list[Record]:
    """At most `count` records: all of a small file, or else those after evenly spaced bytes.

    Raises ValueError with the byte of a line that is not a record.
    """
    size = file.stat().st_size
    result, read = [], 0
    with file.open("rb") as stream:
        head = list(islice(stream, count + 1))
        step = 0 if len(head) <= count else size / count
        for number in range(count if step else len(head)):
            if step:
                stream.seek(max(0, int(number * step) - 1))
                if number:
                    stream.readline()  # the rest of a line, or the end of the one before
            place = stream.tell() if step else number
            line = stream.readline() if step else head[number]
            read += len(line)
            if not line or read > MAX_BYTES:
                break
            try:
                result.append(Record(**json.loads(line)))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{file}: near byte {place}: not a record of a conversation: {error}") from error
    return result
