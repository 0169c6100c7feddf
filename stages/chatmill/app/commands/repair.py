"""Remove what is damaged or was left by killed commands, so that `dvc repro` or `dvc pull` restores it."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from chatmill.app.integrity.healing import clear_leftovers, exclusive, forget_checksums, heal, restore_lock
from chatmill.app.integrity.project import open_project
from chatmill.app.integrity.survey import REPAIR, chosen_remotes, survey
from chatmill.app.terminal.tokens import printable

EPILOG = """Removed are damaged objects of DVC's cache and damaged outputs of stages; a sound copy
in the other place is used first. A broken dvc.lock is restored from git's HEAD. Inputs are
never removed: the commands that restore them are printed.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.formatter_class, command.epilog = argparse.RawDescriptionHelpFormatter, EPILOG
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
    lines = []
    with open_project(folder) as project, exclusive(project):
        for line in (*clear_leftovers(project), *restore_lock(project)):
            lines.append(line)
            yield line
        found = survey(project, chosen_remotes(project, remote) if remote else ())
        for line in heal(found):
            lines.append(line)
            yield line
        removed = {str(file) for file in found.bad_remote}
        remaining = [one for one in found.findings if one.remedy != REPAIR and one.path not in removed]
        yield from (": ".join(one) for one in remaining)
        pull = bool(project.remotes or project.unchecked_remotes)
        if lines or remaining:
            forget_checksums(project)
    if lines:
        push = f", then `dvc push --remote {remote}`" if remote else ""
        yield f"next: {'`dvc pull`, if the run was pushed, then ' if pull else ''}`dvc repro`{push}"
