"""Where a run comes from: the commit that it began at, the experiment it is, and the parameters that it changes.

DVC tells the commands of an experiment its name and its commit; what git knows is asked of git. A report that DVC takes
from its cache says where it was first made.
"""

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from chatmill.pipeline.params_file import PARAMS_FILE, parse_params, read_params
from chatmill.report.markup import Html, join, section, table, tag
from chatmill.report.metrics import Metrics, dotted, get_nested, number

GIT_SECONDS = 10
COMMIT_LETTERS = 7
TEST_SET = "data/chat/test.jsonl"


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

    @property
    def name(self) -> str | None:
        """The name by which `chatmill compare` finds the run: that of the experiment, or of the commit."""
        return self.experiment or (self.commit and self.commit[:COMMIT_LETTERS])


def read_origin(folder: Path) -> Origin:
    """The origin of the run that is being made in a folder."""
    commit = os.environ.get("DVC_EXP_BASELINE_REV") or _git(folder, "rev-parse", "--verify", "HEAD")
    subject = commit and _git(folder, "show", "--no-patch", "--format=%s", commit)
    changed = commit and _git(folder, "diff", "--name-only", commit, "--", "stages", "dvc.yaml", ":!*.md")
    written = datetime.now(UTC).replace(microsecond=0)
    experiment = os.environ.get("DVC_EXP_NAME")
    return Origin(written, experiment, commit or None, subject or None, bool(changed), _changes(folder, commit))


def _changes(folder: Path, commit: str | None) -> list[Change]:
    """The parameters that differ from those of a commit; none where either cannot be read."""
    content = commit and _git(folder, "show", f"{commit}:./{PARAMS_FILE}")
    try:
        before, after = parse_params((content or "").encode(), str(PARAMS_FILE)), read_params(folder / PARAMS_FILE)
    except ValueError:
        return []
    old, new = dict(dotted(before)), dict(dotted(after))
    names = [name for name in old | new if old.get(name) != new.get(name)]
    return [Change(name, old.get(name), new.get(name)) for name in names]


def _git(folder: Path, *arguments: str) -> str | None:
    """What git writes; None where there is no git, or it fails."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        run = subprocess.run(command, capture_output=True, timeout=GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.decode("utf-8", "replace").strip() if run.returncode == 0 else None


def this_run(origin: Origin, evaluation: Metrics, benchmark: Metrics) -> Html:
    """Which run the report is of, and the command that compares it with another one."""
    model, machine = get_nested(evaluation, "model", default={}), get_nested(benchmark, "machine", default={})
    commit = origin.commit and f"{origin.commit[:COMMIT_LETTERS]} {origin.subject or ''}"
    facts = {
        "Experiment": origin.experiment,
        "Commit": commit and commit + (", with changes of code that are not in it" if origin.code_differs else ""),
        "Written": f"{origin.written:%Y-%m-%d %H:%M} UTC",
        "Model": _model(model),
        "Training": _training(model),
        "Measured on": "; ".join(f"{key} {value}" for key, value in machine.items()),
        "Compare": origin.name and tag("code", f"chatmill compare {origin.name} OTHER_RUN --data {TEST_SET}"),
    }
    rows = (join([tag("dt", key), tag("dd", value)]) for key, value in facts.items() if value)
    changed = [(name, _value(before), _value(after)) for name, before, after in origin.changes]
    head = "parameter", "in the commit", "in this run"
    changes = table("Parameters that differ from the commit's", head, changed) if changed else ""
    return section("This run", tag("dl", *rows, class_="facts"), changes)


def _model(model: Metrics) -> str:
    if not model:
        return ""
    shape = ", ".join(f"{model[key]} {key}" for key in ("layers", "heads") if key in model)
    size = f"{model['parameters'] / 1e6:.2f} million parameters"
    return f"{size}: {shape}, width {number(model.get('width'))}, context of {number(model.get('context'))} tokens"


def _training(model: Metrics) -> str:
    if "steps" not in model:
        return ""
    compiled = "compiled" if model.get("compile") else "not compiled"
    epochs = f", {number(model['epochs'])} epochs" if "epochs" in model else ""
    return f"{number(model['steps'])} steps{epochs}, {model.get('precision')}, {compiled}, on {model.get('device')}"


def _value(value: str | None) -> str:
    return "–" if value is None else value
