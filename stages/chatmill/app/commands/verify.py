"""Check all files of the project against dvc.lock, the .dvc files and the names of cached objects.

Every file is read again: DVC trusts the time and size of a file that it has seen, and the mode of a cached one.
"""

import argparse
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from chatmill.app.project import (
    LOCK_FILE,
    Item,
    Project,
    damaged_runs,
    digest_files,
    is_broken_link,
    leftovers,
    listing_bytes,
    lock_problem,
    md5_by_path,
    md5_of,
    object_file,
    open_project,
    parse_yaml,
    read_listing,
    stored_objects,
)
from chatmill.app.terminal.text import plural, printable

REPAIR, REPRO = "run `chatmill repair`, then `dvc repro`", "run `dvc repro`"
BROKEN_LINK = "is a link to a missing object"
SET_ASIDE = "corrupt"  # the folder in .dvc/tmp for damaged objects that no stage is known to have made


class Finding(NamedTuple):
    path: str
    problem: str
    remedy: str
    repair: Callable[[], str] | None  # what `chatmill repair` does; returns it in words

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.problem}: {self.remedy}").replace("\n", " ")


class Survey:
    """What is wrong with dvc.lock, the cache, some remotes, and the workspace.

    In place of a broken dvc.lock that of git's HEAD counts.
    """

    def __init__(self, project: Project, remotes: Sequence[str]) -> None:
        self.project, self.findings = project, list[Finding]()
        lock = project.lock
        if lock is None:
            self.add(LOCK_FILE, "is missing", REPRO)
        elif problem := lock_problem(lock):
            self.add(LOCK_FILE, problem, repair=self._restore_lock)
            lock = project.committed_lock
        self.entries: dict[str, dict[str, Any]] = (parse_yaml(lock).get("stages") if lock else None) or {}
        self.outputs = [item for stage, entry in self.entries.items() for item in project.outputs(stage, entry)]
        items = [*self.outputs, *project.sources]

        # Read everything once.
        self._cached = stored_objects(project.cache)
        remote = {name: stored_objects(project.remotes[name]) for name in remotes}
        files = [file for objects in (self._cached, *remote.values()) for file in objects.values()]
        inputs = [path for entry in self.entries.values() for path in md5_by_path(entry, "deps")]
        self._files = {path: project.files(path) for path in (*inputs, *(item.path for item in items))}
        self.digests = digest_files(chain(files, *(found.values() for found in self._files.values())), "verify")

        # What is known of the objects: which are sound, where they belong, and what the workspace has of them.
        self._sound = self._sound_of(self._cached)
        self._members = {item: self._members_of(item) for item in items}
        self._places = defaultdict[str, list[str]](list)
        self._copies: dict[str, Callable[[], bytes]] = {}
        for item, members in self._members.items():
            for name, md5 in {"": item.md5, **(members or {})}.items():
                self._places[md5].append(Path(item.path, name).as_posix())
            md5s = self._md5s(item.path)
            self._copies |= {md5: self._files[item.path][name].read_bytes for name, md5 in md5s.items()}
            if item.md5.endswith(".dir") and self._md5(item.path) == item.md5:
                self._copies[item.md5] = partial(listing_bytes, md5s)

        # Compare: the cache first, since what is sound in it decides about the remedies.
        self._check_cache()
        for name, objects in remote.items():
            self._check_remote(name, objects)
        for source in project.sources:
            self._check_item(source)
        if lock:
            self._check_entries()

    def add(
        self, path: str | Path, problem: str, remedy: str = REPAIR, repair: Callable[[], str] | None = None
    ) -> None:
        self.findings.append(Finding(str(self.project.shown(Path(path))), problem, remedy, repair))

    # The cache, remotes, and what is known of their objects.

    def _sound_of(self, objects: dict[str, Path]) -> dict[str, Path]:
        return {name: file for name, file in objects.items() if self.digests[file] == name.removesuffix(".dir")}

    def _members_of(self, item: Item) -> dict[str, str] | None:
        """The MD5 of each file that a folder should have; None for a file, and where the list is lost."""
        if not item.md5.endswith(".dir"):
            return None
        if item.md5 in self._sound:
            return read_listing(self._sound[item.md5])
        return self._md5s(item.path) if self._md5(item.path) == item.md5 else None

    def _objects(self, item: Item) -> set[str]:
        return {item.md5, *(self._members[item] or {}).values()}

    def _damage(self, name: str) -> str:
        """What is wrong with a damaged object, and which outputs it is."""
        places = ", ".join(self._places.get(name, ["no output of this dvc.lock"]))
        return f"is not the content that its name says ({places})"

    def _check_cache(self) -> None:
        for name in sorted(self._cached.keys() - self._sound.keys()):
            self.add(self._cached[name], self._damage(name), repair=partial(self._replace, name))
        lost = {md5 for item in self._members if item.cached for md5 in self._objects(item)} - self._cached.keys()
        for md5 in sorted(lost & self._copies.keys()):
            self.add(self._places[md5][0], "is missing in DVC's cache", repair=partial(self._restore, md5))
        for file in damaged_runs(self.project.cache):
            self.add(file, "is a damaged entry of the run cache", repair=partial(_remove_run, file))

    def _check_remote(self, remote: str, objects: dict[str, Path]) -> None:
        """Report damaged objects, and folders that lack files: DVC takes files for stored if the list of one is."""
        sound = self._sound_of(objects)
        for name, file in objects.items():
            problem = self._damage(name)
            if name in sound:
                if not name.endswith(".dir") or {*read_listing(file).values()} <= sound.keys():
                    continue
                problem = "lists files that are damaged or missing there"
            if name in self._sound:
                remedy = f"run `chatmill repair --remote {remote}`, then `dvc push --remote {remote}`"
                self.add(file, problem, remedy, partial(_remove, file, "removed, since the cache has it"))
            else:
                self.add(file, problem, "this cache has no sound copy: push it from one that has")

    # The workspace.

    def _md5s(self, path: str) -> dict[str, str]:
        """The MD5 of each file of a folder, by relative path; that of a file by ""."""
        return {name: self.digests[file] for name, file in self._files[path].items() if file in self.digests}

    def _md5(self, path: str) -> str | None:
        """The MD5 of a file or folder, as dvc.lock has it; None where there is none."""
        found = self._md5s(path)
        is_folder = (self.project.root / path).is_dir()
        return f"{md5_of(listing_bytes(found))}.dir" if is_folder else found.get("")

    def _check_entries(self) -> None:
        """Compare the entry of each stage with the workspace; report each input and parameter once for all stages."""
        project, changed = self.project, defaultdict[str, list[str]](list)
        for stage, command in project.commands.items():
            entry = self.entries.get(stage)
            if entry is None:
                self.add(LOCK_FILE, f"has no run of {stage}", REPRO)
                continue
            if entry["cmd"] != command:
                self.add(LOCK_FILE, f"the command of {stage} is not that of dvc.yaml", REPRO)
            for item in project.outputs(stage, entry):
                self._check_item(item)
            for parameter in project.changed_parameters(entry):
                changed[parameter].append(stage)
        outputs = {item.path for item in self.outputs}
        inputs = set[str]()
        for stage in sorted(project.commands.keys() & self.entries.keys()):  # all outputs are checked, which they read
            for path, md5 in md5_by_path(self.entries[stage], "deps").items():
                if self._md5(path) != md5 and not self._is_named(path):
                    inputs |= {path} - outputs
                    changed[path].append(stage)
        for path, stages in changed.items():
            restore = f"`git checkout HEAD -- {path}` restores it, if git has it; `dvc repro` runs with it"
            problem = f"is not what it was in the run of {', '.join(sorted(stages))}"
            self.add(path, problem, restore if path in inputs else REPRO)

    def _is_named(self, path: str) -> bool:
        """Whether a file or folder, a file in it, or the folder around it has a finding."""
        return any(f"{one.path}/".startswith(f"{path}/") or path.startswith(f"{one.path}/") for one in self.findings)

    def _check_item(self, item: Item) -> None:
        """Report what differs of an output from dvc.lock, or of an input from its .dvc file."""
        place, actual = self.project.root / item.path, self._md5s(item.path)
        for file in (place, *self._files[item.path].values()):
            if is_broken_link(file):
                self.add(file, BROKEN_LINK, repair=partial(_remove_link, file))
        if is_broken_link(place) or self._md5(item.path) == item.md5:
            return
        is_stored = self._objects(item) <= self._sound.keys()
        fetch = "`dvc pull` fetches it" + (", or `dvc repro` makes it" if item.stage else ", if it was pushed")
        fetch = REPRO if not item.cached else "run `dvc checkout`" if is_stored else fetch
        if not place.exists():
            self.add(item.path, "is missing: not checked out", fetch)
        elif not item.stage:
            copy = f"`dvc checkout --force {item.path}` restores it" if is_stored else "no sound copy is here"
            self.add(item.path, "is not what its .dvc file says", f"`dvc add {item.path}` records it, {copy}")
        elif item.md5.endswith(".dir") and self._members[item] is None:
            self.add(item.path, f"is not what {LOCK_FILE} says {item.stage} wrote", fetch)
        else:
            self._check_files(item, self._members[item] or {"": item.md5}, actual, fetch)

    def _check_files(self, item: Item, expected: dict[str, str], actual: dict[str, str], fetch: str) -> None:
        problem = f"is not what {LOCK_FILE} says {item.stage} wrote"
        for name in sorted(expected.keys() | actual.keys()):
            path = Path(item.path, name)
            if is_broken_link(self.project.root / path):
                continue
            if name not in actual:
                self.add(path, "is missing", "run `dvc checkout` or `dvc repro`")
            elif name not in expected:
                self.add(path, f"was not written by {item.stage}", "move it elsewhere: `dvc repro` may remove it")
            elif actual[name] != expected[name] and actual[name] in self._sound:
                self.add(path, problem, f"it is of another run: {fetch}")
            elif actual[name] != expected[name]:
                self.add(path, problem, repair=partial(_remove, self.project.root / path))

    # What `chatmill repair` does; each returns it in words.

    def _restore_lock(self) -> str:
        """Replace a broken dvc.lock by that of git's HEAD, or remove it: the run cache has what it said."""
        file = self.project.root / LOCK_FILE
        if self.project.committed_lock:
            file.write_bytes(self.project.committed_lock)
            return "restored from git's HEAD"
        file.unlink()
        return "removed, since git has no sound one"

    def _replace(self, name: str) -> str:
        """Replace a damaged object, or remove it, unless it may be the only copy of data that no stage makes."""
        if name in self._copies:
            return self._restore(name)
        if any(name in self._objects(item) for item in self.outputs):
            return _remove(self._cached[name])
        aside = self.project.temporary / SET_ASIDE / name
        aside.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(self._cached[name], aside)
        return f"no stage made it: moved to {self.project.shown(aside)}"

    def _restore(self, name: str) -> str:
        """Write an object of the cache from its copy in the workspace. Raises ValueError if that changed meanwhile."""
        file, content = object_file(self.project.cache, name), self._copies[name]()
        if md5_of(content) != name.removesuffix(".dir"):
            raise ValueError(f"{file}: its copy in the workspace changed meanwhile: run it again")
        file.parent.mkdir(parents=True, exist_ok=True)
        place = file.with_name(f"{file.name}.tmp")
        place.write_bytes(content)
        place.chmod(0o444)
        place.replace(file)
        return "restored from the workspace"


def _remove(file: Path, done: str = "removed") -> str:
    file.unlink(missing_ok=True)
    return done


def _remove_link(file: Path) -> str:
    return _remove(file) if is_broken_link(file) else "whole again, as its object was restored"


def _remove_run(place: Path) -> str:
    """Remove an entry of the run cache, or a folder, then its two parents if empty: DVC fails at empty folders."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink()
    for folder in (place.parent, place.parent.parent):
        if not any(folder.iterdir()):
            folder.rmdir()
    return "removed"


def chosen_remote(project: Project, name: str) -> str:
    """The remote of this name. Raises ValueError if it is not a folder."""
    if name in project.unchecked_remotes:
        raise ValueError(f"--remote {name}: {project.unchecked_remotes[name]} is no folder of this machine")
    if name not in project.remotes:
        raise ValueError(f"--remote {name}: no such remote: expected one of {', '.join(project.remotes) or 'none'}")
    return name


# The command.

EPILOG = """Every file is read again: DVC trusts the time and size of a file that it has seen,
and the mode of a cached one. `chatmill repair` removes or restores what is damaged.
Exits with 0 if everything is in order, else with 1 after a line for each file.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--remote", metavar="NAME", help="check this remote alone (default: all that are folders of this machine)"
    )


def run(options: argparse.Namespace) -> int:
    """Print a line for each finding on stdout, and a summary on stderr; return 1 if there are any."""
    start = time.monotonic()
    with open_project(Path.cwd()) as project:
        found = Survey(project, [chosen_remote(project, options.remote)] if options.remote else list(project.remotes))
        for file, problem, _ in leftovers(project):
            found.add(file, problem)
        for name, url in project.unchecked_remotes.items() if options.remote is None else ():
            print(f"chatmill: remote {name} ({url}): not checked: no folder of this machine", file=sys.stderr)
    for finding in found.findings:
        print(finding)
    size = sum(file.stat().st_size for file in found.digests)
    count, seconds = len(found.findings), time.monotonic() - start
    verdict = f"{count} not in order" if count else "all in order"
    files = f"{plural(len(found.digests), 'file')}, {size / 1e6:,.0f} MB in {seconds:.1f} s"
    print(f"chatmill: {files}: {verdict}", file=sys.stderr)
    return int(bool(count))
