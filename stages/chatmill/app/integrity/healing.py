"""What killed commands leave: entries of DVC's locks, temporary files, and scratch folders of stages."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from chatmill.app.integrity.project import (
    LOCK_FILE,
    Project,
    StoredObject,
    is_broken_link,
    items,
    lock_problem,
    object_file,
    temporary_files,
    write_lock,
)
from chatmill.app.integrity.survey import Survey
from chatmill.pipeline.outputs import SCRATCH, discard_scratch
from chatmill.pipeline.processes import is_alive

RWLOCK = "rwlock"


def scratch_folders(project: Project) -> list[Path]:
    """The folders in which processes wrote outputs that have ended: beside an output, or in one."""
    outputs = {project.root / path for stage in project.outputs.values() for path in stage}
    places = {project.root, *outputs, *(output.parent for output in outputs)}
    folders = [folder for place in places for folder in place.glob(f"{SCRATCH}/*")]
    named = [folder for folder in folders if folder.is_dir() and folder.name.isdigit()]
    return sorted(folder for folder in named if not is_alive(int(folder.name), folder.stat().st_mtime))


def unfinished_files(project: Project) -> list[Path]:
    """The files that interrupted commands left in a cache of this project alone."""
    return temporary_files(project.cache) if project.cache.is_relative_to(project.root) else []


def rwlock_problem(project: Project) -> tuple[str, dict[str, Any]] | None:
    """What is wrong with the file in which DVC notes who reads and writes what, and its content without that."""
    file = project.temporary / RWLOCK
    if not file.exists():
        return None
    try:
        content = _read_rwlock(file)
    except ValueError:
        return "is truncated or damaged", {}
    living = _living(content, file.stat().st_mtime)
    return (
        None
        if living == {kind: held for kind, held in content.items() if held}
        else ("names processes that have ended", living)
    )


def _read_rwlock(file: Path) -> dict[str, Any]:
    from dvc.rwlock import SCHEMA
    from voluptuous import Invalid

    try:
        content: dict[str, Any] = json.loads(file.read_bytes())
        SCHEMA(content)
    except (Invalid, ValueError, RecursionError) as error:
        raise ValueError(f"{file}: {error}") from error
    return content


def _living(content: dict[str, Any], since: float) -> dict[str, Any]:
    living: dict[str, Any] = {}
    for path, holder in content.get("write", {}).items():
        if is_alive(holder["pid"], since):
            living.setdefault("write", {})[path] = holder
    for path, holders in content.get("read", {}).items():
        if alive := [holder for holder in holders if is_alive(holder["pid"], since)]:
            living.setdefault("read", {})[path] = alive
    return living


def running(project: Project) -> tuple[Path, str] | None:
    """A process that reads or writes in the project or in the folder of an experiment, and DVC's file that names it."""
    for file in (project.temporary / RWLOCK, *project.temporary.glob(f"exps/*/*/.dvc/tmp/{RWLOCK}")):
        try:
            living = _living(_read_rwlock(file), file.stat().st_mtime)
        except (ValueError, FileNotFoundError):
            continue
        holders = [
            *living.get("write", {}).values(),
            *(one for many in living.get("read", {}).values() for one in many),
        ]
        if holders:
            return file, f"process {holders[0]['pid']} ({holders[0]['cmd']})"
    return None


@contextmanager
def exclusive(project: Project) -> Iterator[None]:
    """Hold DVC's lock and those of all stages. Raises ValueError where a command or a stage runs."""
    locks = sorted((project.root / SCRATCH / "locks").glob("*"))
    with ExitStack() as held:
        for file in (project.temporary / "lock", project.temporary / f"{RWLOCK}.lock", *locks):
            file.parent.mkdir(parents=True, exist_ok=True)
            lock = held.enter_context(file.open("a"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(f"{file}: held by a running command: wait for its end, or end it") from error
        if found := running(project):
            raise ValueError(f"{found[0]}: {found[1]} runs: wait for its end, or end it")
        yield


# Removes what is damaged, or restores it from a sound copy, so that DVC makes or fetches it again.

SET_ASIDE = "corrupt"  # the folder in .dvc/tmp for damaged files that no stage is known to have made
_CACHE_MODE = 0o444


def clear_leftovers(project: Project) -> Iterator[str]:
    """Remove what killed commands left. The caller holds DVC's locks."""
    if trouble := rwlock_problem(project):
        place = project.temporary / RWLOCK
        place.write_text(json.dumps(trouble[1]), encoding="utf-8")
        yield f"{_shown(project, place)}: {trouble[0]}: cleared"
    for file in unfinished_files(project):
        file.unlink()
        yield f"{_shown(project, file)}: was left by an interrupted command: removed"
    for folder in scratch_folders(project):
        discard_scratch(folder)
        yield f"{_shown(project, folder)}: was left by a stage that was ended: removed"


def restore_lock(project: Project) -> Iterator[str]:
    """Replace a broken dvc.lock by that of git's HEAD, or remove it: the run cache has what it said."""
    file, current = project.root / LOCK_FILE, project.lock
    if current is None or (problem := lock_problem(current)) is None:
        return
    if content := project.committed_lock:
        _write(file, content)
        yield f"{LOCK_FILE}: {problem}: restored from git's HEAD"
    else:
        file.unlink()
        yield f"{LOCK_FILE}: {problem}: removed, since git has no sound one"


def heal(found: Survey) -> Iterator[str]:
    """Restore or remove all that a survey found damaged, as far as it can be made or fetched again."""
    project, recorded = found.project, found.recorded
    if found.replaced:
        write_lock(project.root / LOCK_FILE, found.entries | found.replaced)
        yield from (f"{LOCK_FILE}: the entry of {stage} is restored from its run" for stage in found.replaced)
    bad = {one.name for one in found.bad_objects}
    for one in found.bad_objects:
        yield _remove_object(found, one, recorded)
    for name, source in found.lost.items():
        file = object_file(project.cache, name)
        _restore_object(name, source, file)
        if name not in bad:
            yield f"{_shown(project, file)}: was missing: restored from the workspace"
    for file in found.bad_remote:
        file.unlink()
        yield f"{_shown(project, file)}: damaged: removed, since the cache has it"
    for place in found.bad_runs:
        _remove_run(place)
        yield f"{_shown(project, place)}: damaged entry of the run cache: removed"
    for file in found.bad_outputs:
        file.unlink()
        yield f"{_shown(project, file)}: no run wrote this content: removed"
    for file in found.doubtful:
        aside = _set_aside(project, file, file.relative_to(project.root))
        yield f"{_shown(project, file)}: no recorded run wrote this content: moved to {aside}"
    for file in _broken_links(found):  # DVC fails at them
        file.unlink()
        yield f"{_shown(project, file)}: is a link to a missing object: removed"


def _broken_links(found: Survey) -> list[Path]:
    """The links of outputs and tracked data to objects that the cache does not have, or has no more."""
    project = found.project
    paths = {item.path for entry in found.entries.values() for item in items(entry, "outs")}
    paths |= {source.path for source in project.sources}
    files = (file for path in sorted(paths) for file in [project.root / path, *project.files(path).values()])
    return [file for file in files if is_broken_link(file)]


def _remove_object(found: Survey, one: StoredObject, recorded: set[str]) -> str:
    """Remove a damaged object, or set it aside if it may be the only copy of data that no stage makes."""
    place = _shown(found.project, one.file)
    if one.name in recorded or one.name in found.lost:
        one.file.unlink()
        return f"{place}: damaged: {'restored from the workspace' if one.name in found.lost else 'removed'}"
    return f"{place}: damaged, and no stage made it: moved to {_set_aside(found.project, one.file, Path(one.name))}"


def _remove_run(place: Path) -> None:
    """Remove an entry of the run cache, and its folder if that has no other; or a folder without any."""
    folder = place if place.is_dir() else place.parent
    if place != folder:
        place.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def _set_aside(project: Project, file: Path, name: Path) -> Path:
    """Move a file to where DVC does not look; return its place in the project."""
    aside = project.temporary / SET_ASIDE / name
    aside.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(file, aside)
    return _shown(project, aside)


def _restore_object(name: str, source: Path | bytes, file: Path) -> None:
    """Write an object of the cache. Raises ValueError where its source has changed in the meantime."""
    content = file.with_name(f"{file.name}.tmp")
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(source, Path):
        shutil.copyfile(source, content)
    else:
        content.write_bytes(source)
    with content.open("rb") as stream:
        md5 = hashlib.file_digest(stream, "md5").hexdigest()
    if md5 != name.removesuffix(".dir"):
        content.unlink()
        raise ValueError(f"{source if isinstance(source, Path) else file}: changed while it was read: run it again")
    content.chmod(_CACHE_MODE)
    content.replace(file)


def forget_checksums(project: Project) -> None:
    """Remove DVC's databases of checksums, since they take a file for sound if its time and size are."""
    for database in project.databases:
        shutil.rmtree(database, ignore_errors=True)


def _write(file: Path, content: bytes) -> None:
    place = file.with_name(f"{file.name}.tmp")
    with place.open("wb") as stream:
        stream.write(content)
        os.fsync(stream.fileno())
    place.replace(file)


def _shown(project: Project, file: Path) -> Path:
    return file.relative_to(project.root) if file.is_relative_to(project.root) else file
