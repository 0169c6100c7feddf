"""What killed commands and full disks leave: DVC's locks and temporary files, scratch folders, cut modules."""

import fcntl
import json
import marshal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from chatmill.app.integrity.project import TEMPORARY, Project
from chatmill.pipeline.outputs import SCRATCH, discard_scratch
from chatmill.pipeline.processes import is_alive

RWLOCK = "rwlock"  # in which DVC notes who reads and writes what


class Leftover(NamedTuple):
    file: Path
    problem: str
    clear: Callable[[], object]


def leftovers(project: Project) -> Iterator[Leftover]:
    """What ended processes left in the project."""
    rwlock = project.temporary / RWLOCK
    if rwlock.exists() and ((named := _named(rwlock)) is None or (named and not _living(named, rwlock))):
        yield Leftover(rwlock, "names no process that runs", lambda: rwlock.write_text("{}", encoding="utf-8"))
    if project.cache.is_relative_to(project.root):  # else it may be that of other projects, too
        for pattern in (f"files/md5/*/*{TEMPORARY}", f"runs/*/*/*{TEMPORARY}"):
            for file in sorted(project.cache.glob(pattern)):
                yield Leftover(file, "was left by an interrupted command", file.unlink)
    outputs = {project.root / path for stage in project.outputs.values() for path in stage}
    places = {project.root, *outputs, *(output.parent for output in outputs)}
    folders = sorted(folder for place in places for folder in place.glob(f"{SCRATCH}/*") if folder.name.isdigit())
    for folder in folders:
        if folder.is_dir() and not is_alive(int(folder.name), folder.stat().st_mtime):
            yield Leftover(folder, "was left by a stage that was ended", partial(discard_scratch, folder))
    for file in sorted(file for place in places for file in place.glob(f".*{TEMPORARY}")):
        yield Leftover(file, "was left by an interrupted command", file.unlink)
    for file in sorted((project.root / "stages").rglob(f"__pycache__/*.{sys.implementation.cache_tag}.pyc")):
        if _is_cut(file):
            yield Leftover(file, "was cut, as on a full disk: Python fails at it", file.unlink)


def _is_cut(module: Path) -> bool:
    """Whether a compiled module is not whole behind its header of 16 bytes, at which Python ends in an EOFError."""
    try:
        marshal.loads(module.read_bytes()[16:])
    except (EOFError, ValueError, TypeError):
        return True
    return False


def running(project: Project) -> tuple[Path, str] | None:
    """A process that reads or writes in the project or in the folder of an experiment, and DVC's file that names it."""
    for file in (project.temporary / RWLOCK, *project.temporary.glob(f"exps/*/*/.dvc/tmp/{RWLOCK}")):
        if file.exists() and (holders := _living(_named(file) or [], file)):
            return file, f"process {holders[0]['pid']} ({holders[0]['cmd']})"
    return None


def _named(rwlock: Path) -> list[dict[str, Any]] | None:
    """The processes that a file names; None where it is damaged."""
    from dvc.rwlock import SCHEMA
    from voluptuous import Invalid

    try:
        content: dict[str, Any] = json.loads(rwlock.read_bytes())
        SCHEMA(content)
    except (Invalid, ValueError, RecursionError):
        return None
    readers = [holder for holders in content.get("read", {}).values() for holder in holders]
    return [*content.get("write", {}).values(), *readers]


def _living(named: list[dict[str, Any]], rwlock: Path) -> list[dict[str, Any]]:
    return [holder for holder in named if is_alive(holder["pid"], rwlock.stat().st_mtime)]


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
