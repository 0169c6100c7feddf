"""Remove what is damaged or was left by killed commands, so that `dvc repro` or `dvc pull` restores it."""

import argparse
import shutil
from pathlib import Path

from chatmill.app.commands.verify import BROKEN_LINK, Finding, Survey, chosen_remote
from chatmill.app.project import exclusive, is_broken_link, leftovers, open_project

EPILOG = """Removed are damaged objects of DVC's cache and damaged outputs of stages; a sound copy
in the other place is used first. A broken dvc.lock is restored from git's HEAD. Inputs are
never removed: the commands that restore them are printed.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--remote", metavar="NAME", help="also remove damaged objects of this remote, a folder, which the cache has"
    )


def run(options: argparse.Namespace) -> None:
    """Print a line for each repair, then what remains, then what to run next."""
    with open_project(Path.cwd()) as project, exclusive(project):
        repaired = False
        for file, problem, clear in [*leftovers(project)]:
            clear()
            repaired = _tell(Finding(str(project.shown(file)), problem, "cleared", None))
        found = Survey(project, [chosen_remote(project, options.remote)] if options.remote else [])
        for one in found.findings:
            if one.repair:
                repaired = _tell(one._replace(remedy=one.repair()))
        for path in sorted({item.path for item in (*found.outputs, *project.sources)}):
            for file in (project.root / path, *project.files(path).values()):
                if is_broken_link(file):  # to an object that was just removed; DVC fails at it
                    file.unlink()
                    repaired = _tell(Finding(str(project.shown(file)), BROKEN_LINK, "removed", None))
        remaining = [one for one in found.findings if not one.repair]
        for one in remaining:
            print(one)
        if repaired or remaining:
            # DVC keeps checksums by a file's time and size, which may be outdated: it has to compute them anew.
            for database in project.databases:
                shutil.rmtree(database, ignore_errors=True)
        else:
            print("nothing to repair")
    if repaired:
        has_remote = bool(project.remotes or project.unchecked_remotes)
        pull = "`dvc pull`, if the run was pushed, then " if has_remote else ""
        push = f", then `dvc push --remote {options.remote}`" if options.remote else ""
        print(f"next: {pull}`dvc repro`{push}")


def _tell(done: Finding) -> bool:
    print(done, flush=True)  # at once, as a later repair may fail
    return True
