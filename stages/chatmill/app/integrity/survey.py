"""What a survey of a project found."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from chatmill.app.integrity.project import (
    LOCK_FILE,
    Item,
    Project,
    StoredObject,
    digest_files,
    is_broken_link,
    items,
    listing_bytes,
    lock_problem,
    read_listing,
    read_lock,
    read_runs,
    stored_objects,
)
from chatmill.app.integrity.workspace import Workspace
from chatmill.pipeline.manifest import MANIFEST_NAME, check_file, check_manifest

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


# The files of the workspace, compared with what entries of dvc.lock say about them.


# Checks of one output: its files in the workspace, and their objects in the cache.

_BROKEN_LINK = "is a link to a missing object"


def check_output(found: Survey, item: Item, stage: str) -> None:
    """Check an output in the workspace and its object in the cache."""
    workspace, state = found.workspace, found.workspace.state(item.path)
    if is_broken_link(found.project.root / item.path):
        found.add(item.path, _BROKEN_LINK, REPAIR)
    elif state is None:
        found.add(item.path, "is missing: not checked out", _remedy_of_missing(found, item))
    elif not workspace.agrees(item):
        _name_changes(found, item, state.md5, stage)
    if item.cached:
        _check_cached(found, item)


def _remedy_of_missing(found: Survey, item: Item) -> str:
    if not item.cached:
        return "run `dvc repro`"
    if _is_cached(found, item):
        return "run `dvc checkout`"
    return "`dvc pull` fetches it, if it was pushed" if item.external else FETCH


def _is_cached(found: Survey, item: Item) -> bool:
    return {item.md5, *_members(found, item)} <= found.sound.keys()


def _members(found: Survey, item: Item) -> set[str]:
    folder = item.md5.endswith(".dir") and item.md5 in found.sound
    return set(read_listing(found.sound[item.md5]).values()) if folder else set()


def _name_changes(found: Survey, item: Item, md5: str, stage: str) -> None:
    """Report a changed output; of a folder whose list of files is known, report each file."""
    actual = found.workspace.md5s(item.path)
    listing = read_listing(found.sound[item.md5]) if md5.endswith(".dir") and item.md5 in found.sound else None
    if item.external:
        remedy = f"`dvc add {item.path}` records it, "  # DVC's checkout removes it, even if there is no other copy
        remedy += (
            f"`dvc checkout --force {item.path}` restores it" if _is_cached(found, item) else "no sound copy is here"
        )
        return found.add(item.path, "is not what its .dvc file says", remedy)
    other = f"it is of another run: {_remedy_of_missing(found, item)}"
    problem = f"is not what {LOCK_FILE} says {stage} wrote"
    if listing is None:
        if "" in actual and actual[""] in found.sound:
            return found.add(item.path, problem, other)
        if "" in actual:
            found.bad_outputs.append(found.project.root / item.path)
        else:
            found.doubtful += found.workspace.files(item.path).values()
        return found.add(item.path, problem, REPAIR)
    for name in sorted(listing.keys() | actual.keys()):
        file = Path(item.path, name)
        if is_broken_link(found.project.root / file):
            found.add(file, _BROKEN_LINK, REPAIR)
        elif name not in actual:
            found.add(file, "is missing", "run `dvc checkout` or `dvc repro`")
        elif name not in listing:
            found.add(file, f"was not written by {stage}", "move it elsewhere: `dvc repro` may remove it")
        elif actual[name] != listing[name] and actual[name] in found.sound:
            found.add(file, problem, other)
        elif actual[name] != listing[name]:
            found.bad_outputs.append(found.project.root / file)
            found.add(file, problem, REPAIR)
    return None


def _check_cached(found: Survey, item: Item) -> None:
    """Report objects that the cache lacks and the workspace has; a damaged one has a finding already."""
    workspace, bad = found.workspace, {one.name for one in found.bad_objects}
    files, actual = workspace.files(item.path), workspace.md5s(item.path)
    for name, md5 in actual.items():
        wanted = md5 == item.md5 if name == "" else workspace.agrees(item) or md5 in _members(found, item)
        if wanted and md5 not in found.sound:
            found.lost[md5] = files[name]
            if md5 not in bad:
                found.add(Path(item.path, name), "is missing in DVC's cache", REPAIR)
    if item.md5.endswith(".dir") and item.md5 not in found.sound and workspace.agrees(item):
        found.lost[item.md5] = listing_bytes(actual)
        if item.md5 not in bad:
            found.add(item.path, "the list of its files is missing in DVC's cache", REPAIR)


def settle_doubts(found: Survey) -> None:
    """Of the files of changed folders whose lists are lost, report those that no sound object or folder has."""
    known, digests = found.sound.keys() | found.lost.keys(), found.workspace.digests
    found.doubtful = [file for file in found.doubtful if file in digests and digests[file].md5 not in known]
    for file in found.doubtful:
        found.add(file, "is not what any known run wrote", REPAIR)


def check_unrecorded(found: Survey) -> None:
    """Without any dvc.lock, report the files of outputs that have another content than in every recorded run."""
    versions: dict[str, dict[str, set[str]]] = {}  # the checksums of each file of each output
    for item in (item for run in found.runs for item in items(run, "outs")):
        listing = {"": item.md5}
        if item.md5.endswith(".dir"):
            listing = read_listing(found.sound[item.md5]) if item.md5 in found.sound else {}
        for name, md5 in listing.items():
            versions.setdefault(item.path, {}).setdefault(name, set()).add(md5)
    for path, names in versions.items():
        actual = found.workspace.md5s(path)
        for name in (name for name, md5s in names.items() if name in actual and actual[name] not in md5s):
            found.bad_outputs.append(found.project.root / path / name)
            found.add(Path(path, name), "is not what any recorded run wrote", REPAIR)


# What of a project is not as dvc.lock, the .dvc files, manifests and the names of cached objects say.


def survey(project: Project, remotes: Iterable[str] = ()) -> Survey:
    """Check the cache, these remotes, and the workspace; in place of a broken dvc.lock that of git's HEAD counts."""
    workspace, content = Workspace(project), project.lock
    problem = "is missing" if content is None else lock_problem(content)
    lock = project.committed_lock if problem else content
    result = Survey(project, workspace, entries=read_lock(lock) if lock else {})
    if problem:
        result.add(LOCK_FILE, problem, "run `dvc repro`" if content is None else REPAIR)
    result.runs, result.bad_runs = read_runs(project.cache)
    cached = list(stored_objects(project.cache))
    remote = {name: list(stored_objects(project.remotes[name])) for name in remotes}
    files = [one.file for objects in (cached, *remote.values()) for one in objects]
    files += workspace.paths([*result.entries.values(), *result.runs])
    files += (file for source in project.sources for file in workspace.files(source.path).values())
    workspace.digests = digest_files(files, "verify")
    _check_cache(result, cached)
    for name, objects in remote.items():
        _check_remote(result, name, objects)
    for source in project.sources:
        check_output(result, source, "a .dvc file")
    if lock:
        _check_entries(result)
    else:
        check_unrecorded(result)
    settle_doubts(result)
    _check_manifests(result)
    return result


def _check_cache(result: Survey, objects: list[StoredObject]) -> None:
    for one in objects:
        digest = result.workspace.digests[one.file]
        if one.is_sound(digest):
            result.sound |= {} if one.legacy else {one.name: one.file}
        else:
            result.bad_objects.append(one)
            result.add(one.file, digest.error or "is not the content that its name says", REPAIR)
    for file in result.bad_runs:
        result.add(file, "is a damaged entry of the run cache", REPAIR)


def _check_remote(result: Survey, name: str, objects: list[StoredObject]) -> None:
    """Report damaged objects, and folders that lack files: DVC takes files for stored if the list of a folder is."""
    digests = result.workspace.digests
    sound = {one.name: one.file for one in objects if one.is_sound(digests[one.file])}
    for one in objects:
        problem = digests[one.file].error or "is not the content that its name says"
        if one.name in sound:
            if not one.name.endswith(".dir") or {*read_listing(one.file).values()} <= sound.keys():
                continue
            problem = "lists files that are damaged or missing there"
        remedy = "this cache has no sound copy: push it from one that has"
        if one.name in result.sound:
            result.bad_remote.append(one.file)
            remedy = f"run `chatmill repair --remote {name}`, then `dvc push --remote {name}`"
        result.add(one.file, problem, remedy)
    for file in read_runs(result.project.remotes[name])[1]:
        result.add(file, "is a damaged entry of the run cache", "delete it")


def _check_entries(result: Survey) -> None:
    """Compare the entry of each stage with the workspace; report each input and parameter once for all stages."""
    changed: dict[str, list[str]] = defaultdict(list)
    for stage in result.project.commands:
        entry = result.entries.get(stage)
        if entry is None:
            result.add(LOCK_FILE, f"has no run of {stage}", "run `dvc repro`")
        elif (better := _better_entry(result, stage, entry)) is not None:
            result.replaced[stage] = better
            result.add(LOCK_FILE, f"the entry of {stage} is not that of the run whose files are here", REPAIR)
        else:
            if entry["cmd"] != result.project.commands[stage]:
                result.add(LOCK_FILE, f"the command of {stage} is not that of dvc.yaml", "run `dvc repro`")
            for item in items(entry, "outs"):
                cached = result.project.outputs[stage].get(item.path, True)
                check_output(result, replace(item, cached=cached), stage)
    for stage in result.project.commands.keys() & result.entries.keys() - result.replaced.keys():
        entry = result.entries[stage]
        for parameter in result.workspace.differing_parameters(entry):
            changed[parameter].append(stage)
        for item in items(entry, "deps"):
            if not result.workspace.agrees(item) and not result.named(item.path):
                changed[item.path].append(stage)
    for path, stages in changed.items():
        result.add(path, f"is not what it was in the run of {', '.join(sorted(stages))}", _input_remedy(result, path))


def _better_entry(result: Survey, stage: str, entry: dict[str, Any]) -> dict[str, Any] | None:
    """An entry that agrees with the files, where this one was damaged: in git, in the run cache, or with their sizes.

    An entry that is in git, or whose outputs the cache has, is a run of its own.
    """
    workspace, command = result.workspace, result.project.commands[stage]
    if workspace.explains(entry, command):
        return None
    content = result.project.committed_lock
    committed: dict[str, Any] | None = read_lock(content).get(stage) if content else None
    outputs = {item.path: item.md5 for item in items(entry, "outs")}
    own = outputs.keys() == result.project.outputs[stage].keys() and result.sound.keys() >= {*outputs.values()}
    candidates = [*filter(None, [committed]), *result.runs, workspace.with_sizes(entry)]
    for other in candidates if entry != committed else ():
        same = outputs == {item.path: item.md5 for item in items(other, "outs")}
        if (same or not own) and workspace.explains(other, command):
            return other
    return None


def _input_remedy(result: Survey, path: str) -> str:
    tracked = result.project.tracked
    in_git = path in tracked or any(one.startswith(f"{path}/") for one in tracked)
    return f"`git checkout HEAD -- {path}` restores it; `dvc repro` runs with it" if in_git else "run `dvc repro`"


def _check_manifests(result: Survey) -> None:
    outputs = [path for stage in result.project.outputs.values() for path in stage if not result.named(path)]
    root, checks = result.project.root, list[tuple[str, Callable[[], Any]]]()
    for path in outputs:
        for manifest in sorted((root / path).rglob(MANIFEST_NAME)):
            checks.append((path, lambda folder=manifest.parent: check_manifest(folder)))  # type: ignore[misc]
    for manifest in (Path(path) for path in outputs if path.endswith(MANIFEST_NAME)):
        for path in (path for path in outputs if Path(path).parent == manifest.parent and path != str(manifest)):
            checks.append((path, lambda f=root / path, m=root / manifest: check_file(f, m) if f.is_file() else None))  # type: ignore[misc]
    with ThreadPoolExecutor() as threads:
        for (path, _), error in zip(checks, threads.map(lambda check: _error_of(check[1]), checks), strict=True):
            if error:
                result.add(path, str(error), "run `dvc repro --force` for its stage")


def _error_of(check: Callable[[], Any]) -> Exception | None:
    try:
        check()
    except (ValueError, OSError) as error:
        return error
    return None


def notices(project: Project) -> Iterator[str]:
    """What is not checked, one line each."""
    for name, url in project.unchecked_remotes.items():
        yield f"remote {name} ({url}): not checked, since it is no folder of this machine"


def chosen_remotes(project: Project, name: str | None) -> list[str]:
    """The remotes to check: all that are folders, or the named one. Raises ValueError if that is none."""
    if name is None:
        return list(project.remotes)
    if name in project.unchecked_remotes:
        raise ValueError(f"--remote {name}: {project.unchecked_remotes[name]} is no folder of this machine")
    if name not in project.remotes:
        raise ValueError(f"--remote {name}: no such remote: expected one of {', '.join(project.remotes) or 'none'}")
    return [name]
