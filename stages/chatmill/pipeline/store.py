"""The store: a folder or bucket outside of DVC that has the parts of large files, each under its SHA-256.

    s3://bucket/chatmill/3f/3f1c…

Any URL that fsspec knows names it. What is read from a store is kept in `.cache/parts`, within a limit, by the time of
its last use.
"""

import errno
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from chatmill.pipeline.outputs import SCRATCH
from chatmill.pipeline.processes import is_alive
from chatmill.pipeline.settings import setting, variable

_CACHE = Path(SCRATCH, "parts")
_CACHE_GB = 50.0
_KEPT = re.compile(r"[0-9a-f]{64}(\.(?P<process>\d+))?")  # a file of the cache; a process is that which fetches it
_ADDRESS = re.compile(r"[^:\s][^:]*|.+://.*[^/\s].*")  # others, as s3:/bucket, would be a folder of this machine
_OBJECT_STORES = {
    "s3",
    "s3a",
    "gs",
    "gcs",
    "abfs",
    "az",
    "adl",
    "oss",
    "oci",
}  # what is written appears when it is whole
_REMEDY = "run `dvc repro --force` for the stage that wrote it"


class StoreError(ValueError):
    """What a store lacks, or cannot do."""


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def current_store() -> "Store | None":
    """The store that is named, if any. Raises ValueError for settings that cannot be."""
    url, limit = setting("store"), setting("store_cache_gb")
    try:
        cache_bytes = int(float(limit or _CACHE_GB) * 1e9)
    except (ValueError, OverflowError):
        cache_bytes = -1
    if cache_bytes < 0:
        raise ValueError(f"{variable('store_cache_gb')}: expected a number of gigabytes, got {limit!r}")
    if url and not _ADDRESS.fullmatch(url):
        raise ValueError(f"{variable('store')}: expected a folder, or an address as s3://bucket/prefix, got {url!r}")
    return Store(url.rstrip("/"), cache_bytes) if url else None


@dataclass(frozen=True)
class Store:
    """A store at a URL; `cache_bytes` of what is read from it are kept."""

    url: str
    cache_bytes: int

    def place(self, sha256: str) -> str:
        """The URL of a content."""
        return f"{self.url}/{sha256[:2]}/{sha256}"

    def add(self, file: Path, sha256: str) -> None:
        """Copy a file to the store, unless it is there. Raises ValueError where it cannot be written."""
        place = self.place(sha256)
        with self._filesystem(place) as (filesystem, path):
            if filesystem.exists(path) and filesystem.size(path) == file.stat().st_size:
                return
            if self.url.partition("://")[0] in _OBJECT_STORES:
                filesystem.put_file(str(file), path)
                return
            filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            unfinished = f"{path}.{uuid4().hex}"
            try:
                filesystem.put_file(str(file), unfinished)
                filesystem.mv(unfinished, path)
            finally:
                if filesystem.exists(unfinished):
                    filesystem.rm_file(unfinished)

    def open(self, sha256: str, size: int, name: str) -> BinaryIO:
        """A content for reading, by way of the cache. Raises ValueError if it is not there or damaged."""
        _CACHE.mkdir(parents=True, exist_ok=True)
        kept = _CACHE / sha256
        with suppress(FileNotFoundError):  # another process may remove it at any time
            if kept.stat().st_size == size:
                os.utime(kept)
                return kept.open("rb")
        return self._fetch(sha256, size, kept, name)

    def problem_of(self, sha256: str, size: int) -> str | None:
        """What is wrong with a content in the store or the cache, of which every byte is read; None if it is sound."""
        digest, kept = hashlib.sha256(), _CACHE / sha256
        if kept.is_file() and sha256_of(kept) != sha256:
            return f"is damaged in {_CACHE}: delete it there"
        with self._filesystem(self.place(sha256)) as (filesystem, path):
            if not filesystem.exists(path):
                return "is missing"
            if filesystem.size(path) != size:
                return f"has {filesystem.size(path):,} bytes in place of {size:,}: delete it there"
            with filesystem.open(path, "rb") as stream:
                while data := stream.read(1 << 22):
                    digest.update(data)
        return None if digest.hexdigest() == sha256 else "is not the content that its name says: delete it there"

    def _fetch(self, sha256: str, size: int, kept: Path, name: str) -> BinaryIO:
        self._make_room(size)
        unfinished = kept.with_name(f"{sha256}.{os.getpid()}")
        try:
            with self._filesystem(self.place(sha256)) as (filesystem, path):
                if not filesystem.exists(path):
                    raise StoreError(f"{name} is not in the store: expected it as {self.place(sha256)}: {_REMEDY}")
                filesystem.get_file(path, str(unfinished))
            if unfinished.stat().st_size != size or sha256_of(unfinished) != sha256:
                place = self.place(sha256)
                raise StoreError(f"{name} is damaged in the store, as {place}: delete it there, and {_REMEDY}")
            stream = unfinished.open("rb")
            unfinished.replace(kept)
            return stream
        finally:
            unfinished.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        """Remove what was used least recently, until so many bytes more are within the limit."""
        sizes: list[tuple[float, int, Path]] = []
        for file in _CACHE.iterdir():
            if not (kept := _KEPT.fullmatch(file.name)):
                continue
            with suppress(FileNotFoundError):
                state = file.stat()
                if not kept["process"] or not is_alive(int(kept["process"]), state.st_mtime):
                    sizes.append((state.st_mtime, state.st_size, file))
        total = sum(bytes for _, bytes, _ in sizes)
        for _, bytes, file in sorted(sizes):
            if total + size <= self.cache_bytes:
                return
            file.unlink(missing_ok=True)
            total -= bytes

    @contextmanager
    def _filesystem(self, place: str) -> Iterator[tuple[Any, str]]:
        """The file system of the store and the path there. Raises ValueError with the store for whatever fails."""
        try:
            yield open_address(place)
        except StoreError:
            raise
        except Exception as error:  # each kind of store raises errors of its own
            reason = reason_of(error)
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                reason += f": free more space, or lower {variable('store_cache_gb')}"
            raise StoreError(f"{variable('store')}: {self.url}: {reason}") from error


def open_address(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path there."""
    from fsspec.core import url_to_fs  # only where an address is named

    return url_to_fs(address)  # type: ignore[no-any-return]


def reason_of(error: Exception) -> str:
    """What an error of a storage says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
