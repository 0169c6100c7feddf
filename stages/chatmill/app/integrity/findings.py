"""What a survey of a project found."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from chatmill.app.integrity.project import Project, items, read_listing
from chatmill.app.integrity.stores import StoredObject
from chatmill.app.integrity.workspace import Workspace

REPAIR = "run `chatmill repair`, then `dvc repro`"
FETCH = "`dvc pull` fetches it, or `dvc repro` makes it"


class Finding(NamedTuple):
    """A file that is not as it should be: its path, what is wrong, and what to do."""

    path: str
    problem: str
    remedy: str


@dataclass
class Survey:
    """All findings, and what a repair needs to know of them."""

    project: Project
    workspace: Workspace
    findings: list[Finding] = field(default_factory=list)
    sound: dict[str, Path] = field(default_factory=dict)  # objects of the cache, by name
    bad_objects: list[StoredObject] = field(default_factory=list)
    bad_remote: list[Path] = field(default_factory=list)  # damaged objects of remotes that the cache has
    bad_runs: list[Path] = field(default_factory=list)
    bad_outputs: list[Path] = field(default_factory=list)
    doubtful: list[Path] = field(default_factory=list)  # files of outputs that a stage may not have written
    lost: dict[str, Path | bytes] = field(default_factory=dict)  # what sound objects had that the cache lacks, by name
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)  # of dvc.lock
    replaced: dict[str, dict[str, Any]] = field(default_factory=dict)  # what damaged entries of it should say
    runs: list[dict[str, Any]] = field(default_factory=list)  # of the run cache

    def add(self, path: str | Path, problem: str, remedy: str) -> None:
        """Add a finding about a path, shown relative to the project."""
        place = Path(path)
        shown = place.relative_to(self.project.root) if place.is_relative_to(self.project.root) else place
        self.findings.append(Finding(str(shown), problem, remedy))

    def named(self, path: str) -> bool:
        """Whether a file or folder, a file in it, or the folder around it has a finding."""
        return any(f"{one.path}/".startswith(f"{path}/") or path.startswith(f"{one.path}/") for one in self.findings)

    @property
    def recorded(self) -> set[str]:
        """The names of the objects that stages made, which can be made again."""
        made = {item.md5 for entry in [*self.entries.values(), *self.runs] for item in items(entry, "outs")}
        folders = [read_listing(self.sound[name]) for name in made if name.endswith(".dir") and name in self.sound]
        return made | {md5 for listing in folders for md5 in listing.values()}
