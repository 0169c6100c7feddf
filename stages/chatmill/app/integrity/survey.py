"""What of a project is not as dvc.lock, the .dvc files, manifests and the names of cached objects say."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from chatmill.app.integrity.digests import digest_files
from chatmill.app.integrity.findings import REPAIR, Survey
from chatmill.app.integrity.output_checks import check_output, check_unrecorded, settle_doubts
from chatmill.app.integrity.project import LOCK_FILE, Project, items, lock_problem, read_listing, read_lock
from chatmill.app.integrity.stores import StoredObject, read_runs, stored_objects
from chatmill.app.integrity.workspace import Workspace
from chatmill.pipeline.manifest import MANIFEST_NAME, check_file, check_manifest
from chatmill.pipeline.parts import PART_LIST, check_parts
from chatmill.pipeline.store import StoreError, current_store


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
    """Check the manifests and parts in outputs that have no finding yet."""
    current_store()  # before all else, since its settings may be none
    outputs = [path for stage in result.project.outputs.values() for path in stage if not result.named(path)]
    root, checks = result.project.root, list[tuple[str, Callable[[], Any]]]()
    for path in outputs:
        for manifest in sorted((root / path).rglob(MANIFEST_NAME)):
            checks.append((path, lambda folder=manifest.parent: check_manifest(folder)))  # type: ignore[misc]
    for manifest in (Path(path) for path in outputs if path.endswith(MANIFEST_NAME)):
        for path in (path for path in outputs if Path(path).parent == manifest.parent and path != str(manifest)):
            checks.append((path, lambda f=root / path, m=root / manifest: check_file(f, m) if f.is_file() else None))  # type: ignore[misc]
    for path in outputs:
        for parts in sorted((root / path).rglob(PART_LIST)):
            checks.append((path, partial(check_parts, parts.parent, in_store=True)))
    unreachable = None
    with ThreadPoolExecutor() as threads:
        for (path, _), error in zip(checks, threads.map(lambda check: _error_of(check[1]), checks), strict=True):
            if isinstance(error, StoreError):
                unreachable = error
            elif error:
                result.add(path, str(error), "run `dvc repro --force` for its stage")
    if unreachable:
        result.add("the store", str(unreachable), "correct its address, or your access to it")


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
