"""Check all files of the project against dvc.lock and the names of cached objects."""

import argparse
import sys
import time
from pathlib import Path

from chatmill.app.integrity.leftovers import leftovers, running
from chatmill.app.integrity.project import open_project
from chatmill.app.integrity.survey import REPAIR, chosen_remotes, survey
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
        for left in leftovers(project):
            found.add(left.file, left.problem, REPAIR)
        if process := running(project):
            print(f"chatmill: {printable(process[1])} runs: files that it writes may be named", file=sys.stderr)
        for name, url in project.unchecked_remotes.items() if options.remote is None else ():
            print(f"chatmill: remote {name} ({url}): not checked: no folder of this machine", file=sys.stderr)
    for finding in found.findings:
        print(printable(": ".join(finding)).replace("\n", " "))
    size = sum(digest.size for digest in found.digests.values())
    count, seconds = len(found.findings), time.monotonic() - start
    verdict = "all in order" if not count else f"{count} {'is' if count == 1 else 'are'} not in order"
    read = f"{len(found.digests):,} files, {size / 1e6:,.0f} MB in {seconds:.1f} s"
    print(f"chatmill: {read}: {verdict}", file=sys.stderr)
    return int(bool(count))
