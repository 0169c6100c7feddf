"""The files of the workspace, compared with what entries of dvc.lock say about them."""

import hashlib
from collections.abc import Iterable, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from chatmill.app.integrity.project import (
    Digest,
    Item,
    Project,
    items,
    listing_bytes,
)

ABSENT = object()  # the value of a parameter that params.yaml does not have


class State(NamedTuple):
    """What dvc.lock would say about a file or folder now."""

    md5: str
    size: int
    nfiles: int | None  # None for a file


class Workspace:
    """The content of the files and folders of a project, by their paths in it."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.digests: dict[Path, Digest] = {}
        self.files = cache(project.files)
        self.parameters = cache(project.parameters)

    def paths(self, entries: Iterable[dict[str, Any]]) -> Iterator[Path]:
        """All files that must be digested before entries can be compared."""
        for item in (item for entry in entries for kind in ("deps", "outs") for item in items(entry, kind)):
            yield from self.files(item.path).values()

    def md5s(self, path: str) -> dict[str, str]:
        """The MD5 of each file of a folder, by relative path."""
        return {name: self.digests[file].md5 for name, file in self.files(path).items() if file in self.digests}

    def state(self, path: str) -> State | None:
        """The state of a file or folder; None where there is none."""
        files = self.files(path)
        found = [self.digests[file] for file in files.values() if file in self.digests]
        if "" in files:
            return State(found[0].md5, found[0].size, None) if found else None
        if not (self.project.root / path).is_dir():
            return None
        md5 = hashlib.md5(listing_bytes(self.md5s(path)), usedforsecurity=False).hexdigest()
        return State(f"{md5}.dir", sum(digest.size for digest in found), len(found))

    def agrees(self, item: Item) -> bool:
        """Whether a file or folder is what dvc.lock says."""
        state = self.state(item.path)
        if state is None or state.md5 != item.md5:
            return False
        return item.size in (None, state.size) and item.nfiles in (None, state.nfiles)

    def differing_parameters(self, entry: dict[str, Any]) -> list[str]:
        """The parameters that have another value than in the run of an entry, as FILE: KEY."""
        return [
            f"{file}: {key}"
            for file, values in (entry.get("params") or {}).items()
            for key, value in values.items()
            if _lookup(self.parameters(file), key) != value
        ]

    def explains(self, entry: dict[str, Any], command: Any) -> bool:
        """Whether an entry says exactly what is there: command, parameters, inputs and outputs."""
        listed = [item for kind in ("deps", "outs") for item in items(entry, kind)]
        return entry["cmd"] == command and all(map(self.agrees, listed)) and not self.differing_parameters(entry)

    def with_sizes(self, entry: dict[str, Any]) -> dict[str, Any]:
        """An entry with the sizes of the files that have its checksums."""
        corrected = deepcopy(entry)
        for one in [*corrected.get("deps", []), *corrected.get("outs", [])]:
            state = self.state(one["path"])
            if state is not None and state.md5 == one.get("md5"):
                one["size"] = state.size
                if state.nfiles is not None:
                    one["nfiles"] = state.nfiles
        return corrected


def _lookup(content: Any, key: str) -> Any:
    for name in key.split("."):
        if not isinstance(content, dict) or name not in content:
            return ABSENT
        content = content[name]
    return content
