"""The runs of a repository that differ from a given one by their seed alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chatmill.app.server.git_runs import git_states, run_git
from chatmill.app.server.run_files import RunFiles
from chatmill.app.server.run_rows import other_seeds, run_rows

MAX_EXPERIMENTS = 500


def add_seeds(sides: Sequence[Sequence[str]], folder: Path) -> list[list[str]]:
    """Each side with the runs of other seeds that the repository has, one for each seed, if their model is here.

    Raises ValueError for a side that is no run of the repository, and for two that differ by their seed alone.
    """
    rows = run_rows(git_states(folder, MAX_EXPERIMENTS), folder, RunFiles(folder))
    found = [[_row(name, rows, folder) for name in side] for side in sides]
    groups = [side[0]["group"] for side in found]
    if None in groups:
        raise ValueError(f"{sides[groups.index(None)][0]}: its params.yaml cannot be read: compare it without --seeds")
    if len({*groups}) < len(groups):
        raise ValueError("two of the sides differ by their seed alone: compare them without --seeds")
    return [
        [*side, *(run["name"] for run in other_seeds(known, rows))] for side, known in zip(sides, found, strict=True)
    ]


def _row(name: str, rows: Sequence[dict[str, Any]], folder: Path) -> dict[str, Any]:
    if named := [run for run in rows if name in (run["name"], run["rev"])]:
        return named[0]
    try:
        revision = run_git(folder, ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"])
        return next(run for run in rows if run["rev"] == revision.decode().strip())
    except (ValueError, StopIteration) as error:
        message = "expected an experiment or branch, whose other seeds are searched: compare paths without --seeds"
        raise ValueError(f"{name}: {message}") from error
