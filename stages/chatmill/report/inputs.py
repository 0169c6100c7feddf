"""Reads the files of which the report is made."""

import csv
import json
import math
import os
import subprocess
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from chatmill.data_card import Card, Count, make_card, sample_records
from chatmill.pipeline.manifest import read_text
from chatmill.pipeline.params_file import PARAMS_FILE, parse_params
from chatmill.report.markup import Metrics, dotted

SAMPLED = 2000  # conversations of the training set whose text is looked at

Points = list[tuple[float, float]]
Curve = dict[str, Points]  # (step, value) of each column


def read_metrics(file: Path) -> Metrics:
    """The metrics in a file. Raises ValueError where it is not an object of JSON."""
    return _object(read_text(file), f"{file}")


def read_samples(file: Path) -> list[Metrics]:
    """The sample answers in a file, one per line. Raises ValueError with file and line."""
    found = []
    for place, line in enumerate(read_text(file).split("\n")[:-1], start=1):
        found.append(_object(line, f"{file}:{place}"))
        if missing := {"prompt", "answer", "stopped"} - found[-1].keys():
            raise ValueError(f"{file}:{place}: expected a sample, with {', '.join(sorted(missing))}")
    return found


def _object(text: str, place: str) -> Metrics:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{place}: expected an object of JSON, got a {type(content).__name__}")
    return content


def read_curve(file: Path, *, strict: bool = True) -> Curve:
    """The columns of a tab-separated table: (step, value) of each cell that is not empty, infinite or NaN.

    A row with another cell that is no number, or without a step, raises ValueError; if not strict it is left out, as a
    curve that grows may end in half a row.
    """
    curve: Curve = {}
    text = read_text(file) if strict else file.read_text(encoding="utf-8", errors="replace")
    for place, row in enumerate(csv.DictReader(text.splitlines(), delimiter="\t"), start=2):
        try:
            values = {name: float(cell) for name, cell in row.items() if cell}
            step = values.pop("step")
        except (ValueError, KeyError, TypeError) as error:
            if not strict:
                continue
            raise ValueError(f"{file}:{place}: expected numbers and a step: {error}") from error
        for name, value in values.items():
            if math.isfinite(value):
                curve.setdefault(name, []).append((step, value))
    return curve


def cards_of(train: Path, count_tokens: Count, context: int | None) -> dict[str, Card]:
    source_of = attrgetter("source")
    by_source = groupby(sorted(sample_records(train, SAMPLED), key=source_of), key=source_of)
    return {source: make_card(some, count_tokens=count_tokens, context=context) for source, some in by_source}


# Where a run comes from: the commit that it began at, the experiment it is, and the parameters that it changes.

SUMMARY = "data/metrics/summary.json"


class Change(NamedTuple):
    """A parameter with its values in the commit and in the run; None where it is not there."""

    name: str
    before: str | None
    after: str | None


class Origin(NamedTuple):
    """What is known of a run beside its metrics; None where git and DVC do not say it."""

    written: datetime
    experiment: str | None
    commit: str | None
    subject: str | None  # of the commit's message
    code_differs: bool  # the stages are not those of the commit
    changes: list[Change]  # of the commit's parameters
    former: Metrics  # the key figures of the commit

    @property
    def name(self) -> str | None:
        """The name by which `chatmill compare` finds the run: that of the experiment, or of the commit."""
        return self.experiment or self.commit_name

    @property
    def commit_name(self) -> str | None:
        return self.commit and self.commit[:7]


def read_origin(folder: Path) -> Origin:
    commit = os.environ.get("DVC_EXP_BASELINE_REV") or _git(folder, "rev-parse", "--verify", "HEAD")
    subject = commit and _git(folder, "show", "--no-patch", "--format=%s", commit)
    changed = commit and _git(folder, "diff", "--name-only", commit, "--", "stages", "dvc.yaml", ":!*.md")
    written = datetime.now(UTC).replace(microsecond=0)
    params = folder / PARAMS_FILE
    now = _parsed(params.read_bytes() if params.is_file() else b"")
    changes = _changes(_of_commit(folder, commit, str(PARAMS_FILE)), now)
    former = _of_commit(folder, commit, SUMMARY)
    experiment = os.environ.get("DVC_EXP_NAME")
    return Origin(written, experiment, commit or None, subject or None, bool(changed), changes, former)


def _of_commit(folder: Path, commit: str | None, file: str) -> Metrics:
    """What a file of YAML or JSON says in a commit; empty where it cannot be read."""
    return _parsed((_git(folder, "show", f"{commit}:./{file}") or "").encode())


def _parsed(content: bytes) -> Metrics:
    try:
        return parse_params(content, "")
    except ValueError:
        return {}


def _changes(before: Metrics, after: Metrics) -> list[Change]:
    """The parameters that differ; none where either cannot be read."""
    if not before or not after:
        return []
    old, new = dict(dotted(before)), dict(dotted(after))
    return [Change(name, old.get(name), new.get(name)) for name in old | new if old.get(name) != new.get(name)]


def _git(folder: Path, *arguments: str) -> str | None:
    """What git writes; None where there is no git, or it fails."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        run = subprocess.run(command, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.decode("utf-8", "replace").strip() if run.returncode == 0 else None
