"""A file with the state of a run: its name tells the order of states, and whether the content is whole.

<number>-<sha256 of the file>.pt
"""

import hashlib
import os
import re
from io import FileIO
from pathlib import Path
from typing import Any

import torch

_NAME = re.compile(r"(\d+)-([0-9a-f]{64})\.pt")


def is_state_name(name: str) -> bool:
    """Whether a file of this name is a state."""
    return _NAME.fullmatch(name) is not None


def state_name(number: int, sha256: str) -> str:
    """The name of the file."""
    return f"{number}-{sha256}.pt"


def state_number(name: str) -> int:
    """The number in the name of a file."""
    return int(name.split("-")[0])


def write_state(state: Any, place: Path) -> str:
    """Write a state and return the sha256 of the file. Raises OSError where there is no space for it."""
    with place.open("wb", buffering=0) as file:
        digested = _HashingWriter(file)
        torch.save(state, digested)  # type: ignore[arg-type]  # it takes any object with a write method
        if digested.error:
            reason = f"{digested.error.strerror} for a state of {digested.size / 1e6:,.1f} MB"
            raise OSError(digested.error.errno, reason)
        os.fsync(file.fileno())
    return digested.digest.hexdigest()


def is_whole(file: Path, name: str) -> bool:
    """Whether the content of a file is that of the state of this name."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == name.removesuffix(".pt").split("-")[1]


def read_state(file: Path) -> Any:
    """The state in a file, on the CPU; no code of it is run."""
    return torch.load(file, map_location="cpu", weights_only=True)


class _HashingWriter:
    """A file that is hashed as it is written; it stores an OSError, which torch would hide behind one of its own."""

    def __init__(self, file: FileIO) -> None:
        self.file, self.digest, self.size = file, hashlib.sha256(), 0
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        """Write the content and count its bytes; after an error, they are only counted."""
        rest = memoryview(content).cast("B")
        length = rest.nbytes
        self.size += length
        self.digest.update(rest)
        try:
            while rest and self.error is None:
                rest = rest[self.file.write(rest) :]
        except OSError as error:
            self.error = error
        return length

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""
