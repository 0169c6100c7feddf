"""What killed commands leave: entries of DVC's locks, temporary files, and scratch folders of stages."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from chatmill.app.integrity.project import Project
from chatmill.app.integrity.stores import temporary_files
from chatmill.pipeline.outputs import SCRATCH
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
    """The entries of processes that run."""
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
