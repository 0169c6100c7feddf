"""Remove what is damaged or was left by killed commands, so that `dvc repro` or `dvc pull` restores it."""

import argparse
import shutil
from collections.abc import Iterator
from pathlib import Path

from chatmill.app.commands.verify import BROKEN_LINK, REPAIR, chosen_remotes, survey
from chatmill.app.project import LOCK_FILE, Project, exclusive, is_broken_link, leftovers, lock_problem, open_project
from chatmill.app.terminal.text import printable

EPILOG = """Removed are damaged objects of DVC's cache and damaged outputs of stages; a sound copy
in the other place is used first. A broken dvc.lock is restored from git's HEAD. Inputs are
never removed: the commands that restore them are printed.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--remote", metavar="NAME", help="also remove damaged objects of this remote, a folder, which the cache has"
    )


def run(options: argparse.Namespace) -> int:
    done = False
    for line in _repair(Path.cwd(), options.remote):
        done = True
        print(printable(line).replace("\n", " "))
    if not done:
        print("nothing to repair")
    return 0


def _repair(folder: Path, remote: str | None) -> Iterator[str]:
    """Repair the project; yield a line for each repair, then what remains, then what to run next."""
    is_repaired = False
    with open_project(folder) as project, exclusive(project):
        for left in leftovers(project):
            left.clear()
            is_repaired = True
            yield f"{project.shown(left.file)}: {left.problem}: cleared"
        if restored := _restore_lock(project):
            is_repaired = True
            yield restored
        remaining = list[str]()
        found = survey(project, chosen_remotes(project, remote) if remote else [])
        for finding in found.findings:
            if finding.repair:
                is_repaired = True
                yield f"{finding.path}: {finding.problem}: {finding.repair()}"
            elif finding.remedy != REPAIR:  # the others are broken links, which are removed below
                remaining.append(f"{finding.path}: {finding.problem}: {finding.remedy}")
        for path in sorted({item.path for item in (*found.outputs, *project.sources)}):
            for file in (project.root / path, *project.files(path).values()):
                if is_broken_link(file):  # maybe to an object that was just removed; DVC fails at it
                    file.unlink()
                    is_repaired = True
                    yield f"{project.shown(file)}: {BROKEN_LINK}: removed"
        yield from remaining
        if is_repaired or remaining:
            # DVC keeps checksums by a file's time and size, which may be outdated: it has to compute them anew.
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
