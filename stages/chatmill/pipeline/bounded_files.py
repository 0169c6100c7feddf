"""Files that anyone may have made, read within a limit of memory."""

import json
from pathlib import Path
from typing import Any

MAX_JSON_BYTES, MAX_JSON_VALUES = 1 << 26, 1 << 22  # twice as much as the largest tokenizer.json known


def read_bounded(file: Path, max_bytes: int) -> bytes:
    """The content of a file. Raises ValueError where it is no regular file, or has more bytes, whatever its size."""
    if not file.is_file():
        raise ValueError("not a regular file")
    try:
        with file.open("rb") as stream:
            data = stream.read(max_bytes + 1)  # some files of the system are endless and seem to be empty
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from error
    if len(data) > max_bytes:
        raise ValueError(f"over {max_bytes:,} bytes")
    return data


def read_json(file: Path, max_bytes: int = MAX_JSON_BYTES, **options: Any) -> Any:
    """The content of a JSON file; the options are those of json.loads. Raises ValueError where it cannot be read."""
    data = read_bounded(file, max_bytes)
    if data.count(b",") >= MAX_JSON_VALUES:
        raise ValueError(f"over {MAX_JSON_VALUES:,} values")
    try:
        return json.loads(data.decode(), **options)
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error
