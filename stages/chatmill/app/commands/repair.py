"""Remove what is damaged or was left by killed commands, so that `dvc repro` or `dvc pull` restores it."""

import argparse
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from chatmill.app.commands.verify import BROKEN_LINK, REPAIR, Survey, chosen_remotes, survey
from chatmill.app.project import (
    LOCK_FILE,
    Project,
    exclusive,
    is_broken_link,
    leftovers,
    lock_problem,
    object_file,
    open_project,
    read_listing,
)
from chatmill.app.terminal.text import printable

EPILOG = """Removed are damaged objects of DVC's cache and damaged outputs of stages; a sound copy
in the other place is used first. A broken dvc.lock is restored from git's HEAD. Inputs are
never removed: the commands that restore them are printed.
"""
SET_ASIDE = "corrupt"  # the folder in .dvc/tmp for damaged objects that no stage is known to have made


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--remote", metavar="NAME", help="also remove damaged objects of this remote, a folder, which the cache has"
    )


def run(options: argparse.Namespace) -> int:
    """Print a line for each repair, what remains to be done by hand, and the next command."""
    done = False
    for line in _repair(Path.cwd(), options.remote):
        done = True
        print(printable(line).replace("\n", " "))
    if not done:
        print("nothing to repair")
    return 0


def _repair(folder: Path, remote: str | None) -> Iterator[str]:
    is_repaired = False
    with open_project(folder) as project, exclusive(project):
        for left in leftovers(project):
            left.clear()
            is_repaired = True
            yield f"{project.shown(left.file)}: {left.problem}: cleared"
        if restored := _restore_lock(project):
            is_repaired = True
            yield restored
        found = survey(project, chosen_remotes(project, remote) if remote else [])
        for line in _heal(found):
            is_repaired = True
            yield line
        removed = {str(file) for file in found.bad_remote}
        remaining = [": ".join(one) for one in found.findings if one.remedy != REPAIR and one.path not in removed]
        yield from remaining
        if is_repaired or remaining:  # DVC's databases of checksums trust a file's time and size
            for database in project.databases:
                shutil.rmtree(database, ignore_errors=True)
    if is_repaired:
        has_remote = bool(project.remotes or project.unchecked_remotes)
        pull = "`dvc pull`, if the run was pushed, then " if has_remote else ""
        push = f", then `dvc push --remote {remote}`" if remote else ""
        yield f"next: {pull}`dvc repro`{push}"


def _restore_lock(project: Project) -> str:
    """Replace a broken dvc.lock by that of git's HEAD, or remove it: the run cache has what it said."""
    file, current = project.root / LOCK_FILE, project.lock
    if current is None or (problem := lock_problem(current)) is None:
        return ""
    if project.committed_lock:
        file.write_bytes(project.committed_lock)
        return f"{LOCK_FILE}: {problem}: restored from git's HEAD"
    file.unlink()
    return f"{LOCK_FILE}: {problem}: removed, since git has no sound one"


def _heal(found: Survey) -> Iterator[str]:
    """Restore or remove all that a survey found damaged, as far as it can be made or fetched again."""
    project, recorded = found.project, _recorded(found)
    for name, file in found.bad_objects.items():
        if name in found.lost or name in recorded:
            file.unlink()
            done = "restored from the workspace" if name in found.lost else "removed"
            yield f"{project.shown(file)}: damaged: {done}"
        else:  # it may be the only copy of data that no stage makes
            aside = project.temporary / SET_ASIDE / name
            aside.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(file, aside)
            yield f"{project.shown(file)}: damaged, and no stage made it: moved to {project.shown(aside)}"
    for name, source in found.lost.items():
        file = object_file(project.cache, name)
        _restore_object(name, source, file)
        if name not in found.bad_objects:
            yield f"{project.shown(file)}: was missing: restored from the workspace"
    for file in found.bad_remote:
        file.unlink()
        yield f"{project.shown(file)}: damaged: removed, since the cache has it"
    for place in found.bad_runs:
        folder = place if place.is_dir() else place.parent
        if place != folder:
            place.unlink()
        if not any(folder.iterdir()):  # DVC fails at empty folders
            folder.rmdir()
        yield f"{project.shown(place)}: damaged entry of the run cache: removed"
    for file in found.bad_outputs:
        file.unlink()
        yield f"{project.shown(file)}: no run wrote this content: removed"
    for path in sorted({item.path for item in (*found.outputs, *project.sources)}):
        for file in (project.root / path, *project.files(path).values()):
            if is_broken_link(file):  # DVC fails at it
                file.unlink()
                yield f"{project.shown(file)}: {BROKEN_LINK}: removed"


def _recorded(found: Survey) -> set[str]:
    """The names of the objects that stages made, which can be made again."""
    made = {item.md5 for item in found.outputs}
    folders = [read_listing(found.sound[name]) for name in made if name.endswith(".dir") and name in found.sound]
    return made | {md5 for listing in folders for md5 in listing.values()}


def _restore_object(name: str, source: Path | bytes, file: Path) -> None:
    """Write an object of the cache. Raises ValueError where its source has changed in the meantime."""
    content = source.read_bytes() if isinstance(source, Path) else source
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != name.removesuffix(".dir"):
        raise ValueError(f"{source if isinstance(source, Path) else file}: changed while it was read: run it again")
    file.parent.mkdir(parents=True, exist_ok=True)
    place = file.with_name(f"{file.name}.tmp")
    place.write_bytes(content)
    place.chmod(0o444)
    place.replace(file)
