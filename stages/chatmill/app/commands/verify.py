"""Check all files of the project against dvc.lock, the manifests and the names of cached objects."""

import argparse
import sys
import time
from pathlib import Path

from chatmill.app.integrity.healing import RWLOCK, running, rwlock_problem, scratch_folders, unfinished_files
from chatmill.app.integrity.project import open_project
from chatmill.app.integrity.survey import REPAIR, Survey, chosen_remotes, notices, survey
from chatmill.app.terminal.tokens import printable

EPILOG = """Every file is read again: DVC trusts the time and size of a file that it has seen,
and the mode of a cached one. `chatmill repair` removes or restores what is damaged.
Exits with 0 if everything is in order, else with 1 after a line for each file.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.formatter_class, command.epilog = argparse.RawDescriptionHelpFormatter, EPILOG
    command.add_argument(
        "--remote", metavar="NAME", help="check this remote alone (default: all that are folders of this machine)"
    )


def run(options: argparse.Namespace) -> int:
    """Print a line for each finding on stdout, and a summary on stderr; return 1 if there are any."""
    start = time.monotonic()
    with open_project(Path.cwd()) as project:
        found = survey(project, chosen_remotes(project, options.remote))
        add_leftovers(found)
        if process := running(project):
            print(f"chatmill: {printable(process[1])} runs: files that it writes may be named", file=sys.stderr)
        if options.remote is None:
            for line in notices(project):
                print(f"chatmill: {printable(line)}", file=sys.stderr)
    for path, trouble, remedy in found.findings:
        print(printable(f"{path}: {trouble}: {remedy}").replace("\n", " "))
    _summarize(found, time.monotonic() - start)
    return int(bool(found.findings))


def add_leftovers(found: Survey) -> None:
    """Add what killed commands left."""
    project = found.project
    if trouble := rwlock_problem(project):
        found.add(project.temporary / RWLOCK, trouble[0], REPAIR)
    for file in unfinished_files(project):
        found.add(file, "was left by an interrupted command", REPAIR)
    for folder in scratch_folders(project):
        found.add(folder, "was left by a stage that was ended", REPAIR)


def _summarize(found: Survey, seconds: float) -> None:
    size = sum(digest.size for digest in found.workspace.digests.values())
    read = f"{len(found.workspace.digests):,} files, {size / 1e6:,.0f} MB in {seconds:.1f} s"
    count = len(found.findings)
    verdict = "all in order" if not count else f"{count} {'is' if count == 1 else 'are'} not in order"
    print(f"chatmill: {read}: {verdict}", file=sys.stderr)
