"""Check all files of the project against dvc.lock, the .dvc files and the names of cached objects.

Every file is read again: DVC trusts the time and size of a file that it has seen, and the mode of a cached one.
"""

import argparse
import hashlib
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from chatmill.app.project import (
    LOCK_FILE,
    Digest,
    Item,
    Project,
    damaged_runs,
    digest_files,
    is_broken_link,
    items,
    leftovers,
    listing_bytes,
    lock_problem,
    object_file,
    open_project,
    parse_yaml,
    read_listing,
    running,
    stored_objects,
)
from chatmill.app.terminal.text import printable

BROKEN_LINK = "is a link to a missing object"
REPAIR = "run `chatmill repair`, then `dvc repro`"
FETCH = "`dvc pull` fetches it, or `dvc repro` makes it"
NOT_ITS_NAME = "is not the content that its name says"
MAX_PLACES = 3  # that a damaged object is said to be


class Finding(NamedTuple):
    path: str
    problem: str
    remedy: str
    repair: Callable[[], str] | None  # what `chatmill repair` does; returns it in words


@dataclass
class Survey:
    project: Project
    entries: dict[str, dict[str, Any]]  # of dvc.lock
    digests: dict[Path, Digest] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    sound: dict[str, Path] = field(default_factory=dict)  # objects of the cache, by name
    damaged: dict[str, Path] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)  # of each object in the workspace, by name
    lost: dict[str, Path | bytes] = field(default_factory=dict)  # what the cache lacks and the workspace has, by name

    @property
    def outputs(self) -> list[Item]:
        return [item for entry in self.entries.values() for item in items(entry, "outs")]

    def add(
        self, path: str | Path, problem: str, remedy: str = REPAIR, repair: Callable[[], str] | None = None
    ) -> None:
        self.findings.append(Finding(str(self.project.shown(Path(path))), problem, remedy, repair))

    def md5s(self, path: str) -> dict[str, str]:
        """The MD5 of each file of a folder, by relative path; that of a file by ""."""
        files = self.project.files(path)
        return {name: self.digests[file].md5 for name, file in files.items() if file in self.digests}

    def md5(self, path: str) -> str | None:
        """The MD5 of a file or folder, as dvc.lock has it; None where there is none."""
        found = self.md5s(path)
        if "" in found or not (self.project.root / path).is_dir():
            return found.get("")
        return f"{hashlib.md5(listing_bytes(found), usedforsecurity=False).hexdigest()}.dir"

    def members(self, item: Item) -> dict[str, str] | None:
        """The MD5 of each file that a folder should have; None for a file, and where the cache lacks the list."""
        is_known = item.md5.endswith(".dir") and item.md5 in self.sound
        return read_listing(self.sound[item.md5]) if is_known else None

    def damage(self, name: str, file: Path) -> str:
        """What is wrong with a damaged object, and which outputs it is."""
        places = self.places.get(name, ["no output of this dvc.lock"])
        more = f" and {len(places) - MAX_PLACES} more" if len(places) > MAX_PLACES else ""
        return f"{self.digests[file].error or NOT_ITS_NAME} ({', '.join(places[:MAX_PLACES])}{more})"

    def is_cached(self, item: Item) -> bool:
        return {item.md5, *(self.members(item) or {}).values()} <= self.sound.keys()


def survey(project: Project, remotes: list[str] | None = None) -> Survey:
    """Check the cache, these remotes, and the workspace; in place of a broken dvc.lock that of git's HEAD counts."""
    content = project.lock
    problem = "is missing" if content is None else lock_problem(content)
    lock = project.committed_lock if problem else content
    entries = parse_yaml(Path(LOCK_FILE), lock).get("stages") if lock else {}
    found = Survey(project, entries or {})
    if problem:
        found.add(LOCK_FILE, problem, "run `dvc repro`" if content is None else REPAIR)

    # Read everything once.
    cached = stored_objects(project.cache)
    remote = {name: stored_objects(project.remotes[name]) for name in remotes or ()}
    inputs = [item for entry in found.entries.values() for item in items(entry, "deps")]
    files = [file for objects in (cached, *remote.values()) for file in objects.values()]
    for item in (*inputs, *found.outputs, *project.sources):
        files += project.files(item.path).values()
    found.digests = digest_files(files, "verify")

    # Compare: the cache first, since what is sound in it decides about the remedies.
    found.sound = {name: file for name, file in cached.items() if _is_sound(found, name, file)}
    for item in (*found.outputs, *project.sources):
        for name, md5 in {"": item.md5, **(found.members(item) or {})}.items():
            found.places.setdefault(md5, []).append(Path(item.path, name).as_posix())
    _check_cache(found, cached)
    for name, objects in remote.items():
        _check_remote(found, name, objects)
    for source in project.sources:
        _check_output(found, source, "a .dvc file")
    if lock:
        _check_entries(found)
    return found


def _is_sound(found: Survey, name: str, file: Path) -> bool:
    return found.digests[file].md5 == name.removesuffix(".dir")


def _check_cache(found: Survey, objects: dict[str, Path]) -> None:
    found.damaged = {name: file for name, file in objects.items() if name not in found.sound}
    for name, file in found.damaged.items():
        found.add(file, found.damage(name, file), repair=partial(_replace_object, found, name, file))
    for file in damaged_runs(found.project.cache):
        found.add(file, "is a damaged entry of the run cache", repair=partial(_remove_run, file))


def _check_remote(found: Survey, remote: str, objects: dict[str, Path]) -> None:
    """Report damaged objects, and folders that lack files: DVC takes files for stored if the list of a folder is."""
    sound = {name: file for name, file in objects.items() if _is_sound(found, name, file)}
    for name, file in objects.items():
        problem = found.damage(name, file)
        if name in sound:
            if not name.endswith(".dir") or {*read_listing(file).values()} <= sound.keys():
                continue
            problem = "lists files that are damaged or missing there"
        if name in found.sound:
            remedy = f"run `chatmill repair --remote {remote}`, then `dvc push --remote {remote}`"
            found.add(file, problem, remedy, partial(_remove, file, "removed, since the cache has it"))
        else:
            found.add(file, problem, "this cache has no sound copy: push it from one that has")


def _check_entries(found: Survey) -> None:
    """Compare the entry of each stage with the workspace; report each input and parameter once for all stages."""
    project, changed = found.project, defaultdict[str, list[str]](list)
    for stage, command in project.commands.items():
        entry = found.entries.get(stage)
        if entry is None:
            found.add(LOCK_FILE, f"has no run of {stage}", "run `dvc repro`")
            continue
        if entry["cmd"] != command:
            found.add(LOCK_FILE, f"the command of {stage} is not that of dvc.yaml", "run `dvc repro`")
        for item in items(entry, "outs"):
            _check_output(found, item._replace(cached=project.outputs[stage].get(item.path, True)), stage)
        for parameter in _changed_parameters(project, entry):
            changed[parameter].append(stage)
    for stage in project.commands.keys() & found.entries.keys():  # when all outputs are checked, which others read
        for item in items(found.entries[stage], "deps"):
            if found.md5(item.path) != item.md5 and not _is_named(found, item.path):
                changed[item.path].append(stage)
    for path, stages in changed.items():
        in_git = path in project.tracked or any(one.startswith(f"{path}/") for one in project.tracked)
        restore = f"`git checkout HEAD -- {path}` restores it; `dvc repro` runs with it"
        problem = f"is not what it was in the run of {', '.join(sorted(stages))}"
        found.add(path, problem, restore if in_git else "run `dvc repro`")


def _is_named(found: Survey, path: str) -> bool:
    """Whether a file or folder, a file in it, or the folder around it has a finding."""
    return any(f"{one.path}/".startswith(f"{path}/") or path.startswith(f"{one.path}/") for one in found.findings)


def _changed_parameters(project: Project, entry: dict[str, Any]) -> list[str]:
    """The parameters that have another value than in the run of an entry, as FILE: KEY."""
    changed = []
    for file, values in (entry.get("params") or {}).items():
        place = project.root / file
        content = parse_yaml(place) if place.is_file() else {}
        for key, value in values.items():
            now = content
            for name in key.split("."):
                now = now.get(name) if isinstance(now, dict) else None
            if now != value:
                changed.append(f"{file}: {key}")
    return changed


def _check_output(found: Survey, item: Item, stage: str) -> None:
    md5, place = found.md5(item.path), found.project.root / item.path
    if item.cached:
        _check_objects(found, item, is_unchanged=md5 == item.md5)
    for file in (place, *found.project.files(item.path).values()):
        if is_broken_link(file):
            found.add(file, BROKEN_LINK)
    if is_broken_link(place):
        return
    if md5 is None:
        found.add(item.path, "is missing: not checked out", _remedy_of_missing(found, item))
    elif md5 != item.md5 and item.external:
        restore = f"`dvc checkout --force {item.path}` restores it"
        copy = restore if found.is_cached(item) else "no sound copy is here"
        found.add(item.path, "is not what its .dvc file says", f"`dvc add {item.path}` records it, {copy}")
    elif md5 != item.md5:
        _check_files(found, item, stage)


def _remedy_of_missing(found: Survey, item: Item) -> str:
    if not item.cached:
        return "run `dvc repro`"
    if found.is_cached(item):
        return "run `dvc checkout`"
    return "`dvc pull` fetches it, if it was pushed" if item.external else FETCH


def _check_files(found: Survey, item: Item, stage: str) -> None:
    """Report the files of an output that is not what dvc.lock says, or the folder if the list of its files is lost."""
    actual, listing = found.md5s(item.path), found.members(item)
    expected = {"": item.md5} if listing is None else listing
    problem = f"is not what {LOCK_FILE} says {stage} wrote"
    if listing is None and "" not in actual:
        found.add(item.path, problem, FETCH)
        return
    for name in sorted(expected.keys() | actual.keys()):
        path = Path(item.path, name)
        if is_broken_link(found.project.root / path):
            continue
        if name not in actual:
            found.add(path, "is missing", "run `dvc checkout` or `dvc repro`")
        elif name not in expected:
            found.add(path, f"was not written by {stage}", "move it elsewhere: `dvc repro` may remove it")
        elif actual[name] != expected[name] and actual[name] in found.sound:
            found.add(path, problem, f"it is of another run: {_remedy_of_missing(found, item)}")
        elif actual[name] != expected[name]:
            found.add(path, problem, repair=partial(_remove, found.project.root / path))


def _check_objects(found: Survey, item: Item, *, is_unchanged: bool) -> None:
    """Report objects that the cache lacks and the workspace has; a damaged one has a finding already."""
    files, actual = found.project.files(item.path), found.md5s(item.path)
    known = {item.md5, *(found.members(item) or {}).values()}
    lost: list[tuple[Path, str, Path | bytes, str]] = [
        (Path(item.path, name), md5, files[name], "is missing in DVC's cache")
        for name, md5 in actual.items()
        if (is_unchanged or md5 in known) and md5 not in found.sound
    ]
    if item.md5.endswith(".dir") and item.md5 not in found.sound and is_unchanged:
        listing = listing_bytes(actual)
        lost.append((Path(item.path), item.md5, listing, "the list of its files is missing in DVC's cache"))
    for path, md5, source, problem in lost:
        found.lost[md5] = source
        if md5 not in found.damaged:
            found.add(path, problem, repair=partial(_restore_object, found, md5))


def chosen_remotes(project: Project, name: str | None) -> list[str]:
    """The remotes to check: all that are folders, or the named one. Raises ValueError if that is none."""
    if name is None:
        return list(project.remotes)
    if name in project.unchecked_remotes:
        raise ValueError(f"--remote {name}: {project.unchecked_remotes[name]} is no folder of this machine")
    if name not in project.remotes:
        raise ValueError(f"--remote {name}: no such remote: expected one of {', '.join(project.remotes) or 'none'}")
    return [name]


# What `chatmill repair` does: each function returns it in words.

SET_ASIDE = "corrupt"  # the folder in .dvc/tmp for damaged objects that no stage is known to have made


def _remove(file: Path, done: str = "removed") -> str:
    file.unlink()
    return done


def _remove_run(place: Path) -> str:
    """Remove an entry of the run cache, or a folder, and the folders that this leaves empty, at which DVC fails."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink()
    for folder in (place.parent, place.parent.parent):
        if not any(folder.iterdir()):
            folder.rmdir()
    return "removed"


def _replace_object(found: Survey, name: str, file: Path) -> str:
    if name in found.lost:
        return _restore_object(found, name)
    made = {item.md5 for item in found.outputs}
    listings = [read_listing(found.sound[one]) for one in made if one.endswith(".dir") and one in found.sound]
    if name in made or any(name in listing.values() for listing in listings):
        return _remove(file)
    aside = found.project.temporary / SET_ASIDE / name  # it may be the only copy of data that no stage makes
    aside.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(file, aside)
    return f"no stage made it: moved to {found.project.shown(aside)}"


def _restore_object(found: Survey, name: str) -> str:
    """Write an object of the cache from its copy in the workspace. Raises ValueError if that copy changed meanwhile."""
    file, source = object_file(found.project.cache, name), found.lost[name]
    content = source.read_bytes() if isinstance(source, Path) else source
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != name.removesuffix(".dir"):
        raise ValueError(f"{source if isinstance(source, Path) else file}: changed while it was read: run it again")
    file.parent.mkdir(parents=True, exist_ok=True)
    place = file.with_name(f"{file.name}.tmp")
    place.write_bytes(content)
    place.chmod(0o444)
    place.replace(file)
    return "restored from the workspace"


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
        found = survey(project, chosen_remotes(project, options.remote))
        for left in leftovers(project):
            found.add(left.file, left.problem)
        if process := running(project):
            print(f"chatmill: {printable(process[1])} runs: files that it writes may be named", file=sys.stderr)
        for name, url in project.unchecked_remotes.items() if options.remote is None else ():
            print(f"chatmill: remote {name} ({url}): not checked: no folder of this machine", file=sys.stderr)
    for finding in found.findings:
        print(printable(": ".join(finding[:3])).replace("\n", " "))
    size = sum(digest.size for digest in found.digests.values())
    count, seconds = len(found.findings), time.monotonic() - start
    verdict = "all in order" if not count else f"{count} {'is' if count == 1 else 'are'} not in order"
    read = f"{len(found.digests):,} files, {size / 1e6:,.0f} MB in {seconds:.1f} s"
    print(f"chatmill: {read}: {verdict}", file=sys.stderr)
    return int(bool(count))
