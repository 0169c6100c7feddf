"""Reads the files of which the report is made."""

import json
import os
import subprocess
from configparser import RawConfigParser
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from chatmill.data_card import Card, Count, make_card, sample_records
from chatmill.pipeline.manifest import read_text
from chatmill.pipeline.params_file import PARAMS_FILE, parse_params
from chatmill.report.markup import Metrics, dotted, get_nested

SAMPLED = 2000  # conversations of the training set whose text is looked at


def read_metrics(file: Path) -> Metrics:
    """The metrics in a file. Raises ValueError where it is not an object of JSON."""
    try:
        content = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file}: expected metrics as an object of JSON, got a {type(content).__name__}")
    return content


def read_samples(file: Path) -> list[Metrics]:
    """The sample answers in a file, one per line. Raises ValueError with file and line."""
    result = []
    for place, line in enumerate(read_text(file).split("\n")[:-1], start=1):
        try:
            sample = json.loads(line)
            result.append(sample | {key: sample[key] for key in ("prompt", "answer", "stopped")})
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file}:{place}: expected a sample with prompt, answer and stopped: {error}") from error
    return result


def cards_of(train: Path, count_tokens: Count, context: int | None) -> dict[str, Card]:
    source_of = attrgetter("source")
    by_source = groupby(sorted(sample_records(train, SAMPLED), key=source_of), key=source_of)
    return {source: make_card(some, count_tokens=count_tokens, context=context) for source, some in by_source}


# Where a run comes from: the commit that it began at, the experiment it is, and the parameters that it changes.

SUMMARY, SPEEDS = "data/metrics/summary.json", "data/metrics/speeds.json"  # the second is not in git


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
    former = _of_commit(folder, commit, SUMMARY)
    former |= _of_cache(folder, _of_commit(folder, commit, "dvc.lock"), SPEEDS) if former else {}
    changes = _changes(_of_commit(folder, commit, str(PARAMS_FILE)), _of_file(folder / PARAMS_FILE))
    return Origin(
        written, os.environ.get("DVC_EXP_NAME"), commit or None, subject or None, bool(changed), changes, former
    )


def _of_commit(folder: Path, commit: str | None, file: str) -> Metrics:
    """What a file of YAML or JSON says in a commit; empty where it cannot be read."""
    return _parsed((_git(folder, "show", f"{commit}:./{file}") or "").encode())


def _of_file(file: Path) -> Metrics:
    return _parsed(file.read_bytes() if file.is_file() else b"")


def _parsed(content: bytes) -> Metrics:
    try:
        return parse_params(content, "")
    except ValueError:
        return {}


def _of_cache(folder: Path, lock: Metrics, file: str) -> Metrics:
    """The metrics of the report stage in a file that dvc.lock names; empty where they are not in DVC's cache."""
    config = RawConfigParser()
    config.read(folder / ".dvc" / name for name in ("config", "config.local"))
    cache = folder / ".dvc" / config.get("cache", "dir", fallback="cache") / "files/md5"
    outs = get_nested(lock, "stages", "report", "outs", default=[])
    digest = next((out["md5"] for out in outs if out["path"] == file), "none")
    return _of_file(cache / digest[:2] / digest[2:])


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
