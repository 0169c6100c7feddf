"""The parts of large files, on which several processes work."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from chatmill.pipeline.parts import open_parts, size_of

SHARD_BYTES = 16_000_000


class FileRange(NamedTuple):
    """The lines of a file, or of its parts, that start in [start, end)."""

    file: Path
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.file}, bytes {self.start:,} to {self.end:,}"

    def lines(self) -> Iterator[bytes]:
        """The lines, each complete."""
        with open_parts(self.file) as stream:
            stream.seek(max(self.start - 1, 0))
            position = self.start - 1 + len(stream.readline()) if self.start else 0
            while position < self.end and (line := stream.readline()):
                position += len(line)
                yield line


def shards_of(file: Path, size: int = SHARD_BYTES) -> list[FileRange]:
    """The parts of a file, of `size` bytes at most."""
    end = size_of(file)
    return [FileRange(file, start, min(start + size, end)) for start in range(0, end, size)]
