"""MD5 of many files, on all cores."""

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from chatmill.pipeline.progress import progress_bar

BLOCK = 1 << 20


class Digest(NamedTuple):
    """MD5 and bytes of a file; `error` says why it could not be read."""

    md5: str
    size: int
    error: str = ""


def digest_files(files: Iterable[Path], description: str) -> dict[Path, Digest]:
    """The digests of files that exist; links to the same content are read once."""
    identities: dict[Path, tuple[int, int]] = {}
    sizes: dict[tuple[int, int], tuple[int, Path]] = {}
    for file in files:
        try:
            status = file.stat()
        except FileNotFoundError:
            continue
        identities[file] = status.st_dev, status.st_ino
        sizes[identities[file]] = status.st_size, file
    largest_first = sorted(sizes.items(), key=lambda one: one[1][0], reverse=True)
    total = sum(size for size, _ in sizes.values())
    with (
        progress_bar(total, description, unit="B", scale=True) as bar,
        ThreadPoolExecutor(os.cpu_count()) as threads,
    ):
        read = threads.map(lambda one: _digest(one[1][1], bar), largest_first)
        digests = dict(zip((identity for identity, _ in largest_first), read, strict=True))
    return {file: digests[identity] for file, identity in identities.items()}


def _digest(file: Path, bar: Any) -> Digest:
    digest, size, block = hashlib.md5(usedforsecurity=False), 0, memoryview(bytearray(BLOCK))
    try:
        with file.open("rb", buffering=0) as stream:
            while count := stream.readinto(block):
                digest.update(block[:count])
                size += count
                bar.update(count)
    except OSError as error:
        return Digest("", size, error.strerror or str(error))
    return Digest(digest.hexdigest(), size)
