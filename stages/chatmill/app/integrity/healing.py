"""Removes what is damaged, or restores it from a sound copy, so that DVC makes or fetches it again."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from chatmill.app.integrity.findings import Survey
from chatmill.app.integrity.leftovers import RWLOCK, rwlock_problem, scratch_folders, unfinished_files
from chatmill.app.integrity.project import LOCK_FILE, Project, items, lock_problem, write_lock
from chatmill.app.integrity.stores import StoredObject, is_broken_link, object_file
from chatmill.pipeline.outputs import discard_scratch

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
