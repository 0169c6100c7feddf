"""The store: a folder or bucket outside of DVC that has the parts of large files, each under its SHA-256.

    s3://bucket/chatmill/3f/3f1c…

Any URL that fsspec knows names it. What is read from a store is kept in `.cache/parts`, within a limit, by the time of
its last use.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from chatmill.pipeline.outputs import SCRATCH
from chatmill.pipeline.processes import is_alive
from chatmill.pipeline.settings import setting, variable

_CACHE = Path(SCRATCH, "parts")
_CACHE_GB = 50.0


class StoreError(ValueError):
    """What a store lacks, or cannot do."""


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def current_store() -> "Store | None":
    """The store that is named, if any. Raises ValueError for settings that cannot be."""
    url = setting("store")
    limit = setting("store_cache_gb")
    try:
        limit_gb = float(limit) if limit else _CACHE_GB
    except ValueError as error:
        raise ValueError(f"{variable('store_cache_gb')}: expected a number of gigabytes, got {limit!r}") from error
    return Store(url.rstrip("/"), int(limit_gb * 1e9)) if url else None


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
            filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            unfinished = f"{path}.{os.getpid()}" if _renames(filesystem) else path  # an object appears when it is whole
            filesystem.put_file(str(file), unfinished)
            if unfinished != path:
                filesystem.mv(unfinished, path)

    def open(self, sha256: str, size: int, name: str) -> BinaryIO:
        """A content for reading, by way of the cache. Raises ValueError if it is not there or damaged."""
        _CACHE.mkdir(parents=True, exist_ok=True)
        kept = _CACHE / sha256
        for _ in range(3):  # another process may remove it in between
            with suppress(FileNotFoundError):
                os.utime(kept)
                return kept.open("rb")
            self._fetch(sha256, size, kept, name)
        raise ValueError(f"{name}: {_CACHE} has no room for it: raise {variable('store_cache_gb')}")

    def problem_of(self, sha256: str, size: int) -> str | None:
        """What is wrong with a content in the store, whose every byte is read; None if it is sound."""
        digest = hashlib.sha256()
        with self._filesystem(self.place(sha256)) as (filesystem, path):
            if not filesystem.exists(path):
                return "is missing"
            if filesystem.size(path) != size:
                return f"has {filesystem.size(path):,} bytes in place of {size:,}"
            with filesystem.open(path, "rb") as stream:
                while data := stream.read(1 << 22):
                    digest.update(data)
        return None if digest.hexdigest() == sha256 else "is not the content that its name says"

    def _fetch(self, sha256: str, size: int, kept: Path, name: str) -> None:
        self._make_room(size)
        unfinished = kept.with_name(f"{sha256}.{os.getpid()}")
        try:
            with self._filesystem(self.place(sha256)) as (filesystem, path):
                if not filesystem.exists(path):
                    raise StoreError(f"{name} is not in the store: expected it as {path}")
                filesystem.get_file(path, str(unfinished))
            if unfinished.stat().st_size != size or sha256_of(unfinished) != sha256:
                raise StoreError(
                    f"{name} is damaged in the store, as {self.place(sha256)}: delete it, and make it again"
                )
            unfinished.replace(kept)
        finally:
            unfinished.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        """Remove what was used least recently, until so many bytes more are within the limit."""
        sizes: list[tuple[float, int, Path]] = []
        for file in _CACHE.iterdir():
            process = file.suffix.removeprefix(".")  # that fetches it
            with suppress(FileNotFoundError):
                state = file.stat()
                if not process or not is_alive(int(process), state.st_mtime):
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
            yield _open(place)
        except StoreError:
            raise
        except Exception as error:  # each kind of store raises errors of its own
            reason = " ".join(str(error).split()) or type(error).__name__
            raise StoreError(f"{variable('store')}: {self.url}: {reason}") from error


def _open(place: str) -> tuple[Any, str]:
    import fsspec  # only where a store is named

    return fsspec.core.url_to_fs(place)  # type: ignore[no-any-return]


def _renames(filesystem: Any) -> bool:
    """Whether a file that is being written can be seen, so that it needs another name until it is whole."""
    protocols = filesystem.protocol if isinstance(filesystem.protocol, tuple) else (filesystem.protocol,)
    return bool({"file", "local", "ssh", "sftp", "smb"} & set(protocols))
