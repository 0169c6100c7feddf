"""The caches and remotes of DVC: objects that are named by the MD5 of their content, and the run cache.

files/md5/ab/cdef…        a file
files/md5/ab/cdef….dir    a folder: the list of its files
ab/cdef…                  DVC 2: the MD5 after line breaks were made those of Unix, if it is a text
runs/<key>/<value>        a run: the entry of dvc.lock that it wrote
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chatmill.app.integrity.digests import Digest
from chatmill.app.integrity.project import read_run

TEMPORARY = ".tmp"  # ends the name of a file that DVC has not finished
_NAME = re.compile(r"[0-9a-f]{32}(\.dir)?")


@dataclass(frozen=True)
class StoredObject:
    """A file of a cache or remote. DVC 2 wrote those that are `legacy`."""

    name: str
    file: Path
    legacy: bool

    def is_sound(self, digest: Digest) -> bool:
        """Whether the content has the checksum that the name says."""
        expected = self.name.removesuffix(".dir")
        if digest.md5 == expected or digest.error or not self.legacy:
            return digest.md5 == expected
        unix = self.file.read_bytes().replace(b"\r\n", b"\n")
        return hashlib.md5(unix, usedforsecurity=False).hexdigest() == expected


def object_file(store: Path, name: str) -> Path:
    """Where a cache has the object of this name."""
    return store / "files/md5" / name[:2] / name[2:]


def stored_objects(store: Path) -> Iterator[StoredObject]:
    """The objects of a cache or remote."""
    for folder, legacy in ((store / "files/md5", False), (store, True)):
        for file in sorted(folder.glob("[0-9a-f][0-9a-f]/*")):
            name = file.parent.name + file.name
            if _NAME.fullmatch(name) and file.is_file():
                yield StoredObject(name, file, legacy)


def is_broken_link(file: Path) -> bool:
    """Whether a file is a link to an object of a cache that is not there."""
    if not file.is_symlink() or file.exists():
        return False
    target = file.readlink()
    return bool(_NAME.fullmatch(target.parent.name + target.name))


def temporary_files(store: Path) -> list[Path]:
    """The files of a cache that an interrupted command left."""
    patterns = (f"files/md5/*/*{TEMPORARY}", f"[0-9a-f][0-9a-f]/*{TEMPORARY}", f"runs/*/*/*{TEMPORARY}")
    return [file for pattern in patterns for file in sorted(store.glob(pattern))]


def read_runs(store: Path) -> tuple[list[dict[str, Any]], list[Path]]:
    """The sound entries of a run cache, the files of the others, and empty folders, at which DVC fails."""
    folders = [folder for folder in sorted(store.glob("runs/*/*")) if folder.is_dir()]
    entries, broken = [], [folder for folder in folders if not any(folder.iterdir())]
    for file in sorted(store.glob("runs/*/*/*")):
        if file.name.endswith(TEMPORARY):
            continue
        try:
            entries.append(read_run(file))
        except (ValueError, OSError):
            broken.append(file)
    return entries, broken
