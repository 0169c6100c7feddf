"""Measures the sides of a comparison on the same data, and judges them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from string import ascii_uppercase

from chatmill.app.verdict.compared_runs import Run, measure_run, read_compared, scored_the_same, which_text
from chatmill.app.verdict.differing_words import differing_documents
from chatmill.app.verdict.verdict import Side, baseline_bits, differences
from chatmill.app.verdict.views import Verdict

LIMIT = 1000  # documents


def compare_sides(
    sides_of_names: Sequence[Sequence[str]],
    data: Path,
    *,
    format: str | None,
    limit: int | None,
    tokens: Path | None,
    device: str,
    threads: int | None,
    measured: Callable[[Run], None],
) -> Verdict:
    """Compare sides, each of one run or of several of other seeds, on a file; `measured` is told of each run.

    Raises ValueError for a run or data that cannot be read, and for runs that have no text in common.
    """
    compared = read_compared(data, format, limit or LIMIT)
    runs: list[list[Run]] = []
    for names in sides_of_names:
        runs.append([])
        for name in names:
            runs[-1].append(measure_run(name, compared, device, threads))
            measured(runs[-1][-1])
    everyone = [run for side in runs for run in side]
    which = which_text(everyone)
    sides = [Side(letter, side, which) for letter, side in zip(ascii_uppercase, runs, strict=False)]
    baselines = baseline_bits(sides[0], compared.documents, tokens)
    documents = []
    if len(sides) == 2 and scored_the_same(everyone, which):
        documents = differing_documents(runs[0], runs[1], compared.documents, which)
    return Verdict(sides, differences(sides), baselines, documents)


def runs_of(name: str) -> list[str]:
    """The runs of a side. Raises ValueError where one of them has no name."""
    runs = [name] if Path(name).exists() else [part.strip() for part in name.split(",")]
    if not all(runs):
        raise ValueError(f"{name!r}: expected names of runs with commas between")
    return runs
