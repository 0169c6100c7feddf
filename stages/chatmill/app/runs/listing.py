"""The runs of a repository as git has them: in a second, where `dvc exp show` takes half a second for each new run."""

import subprocess
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from chatmill.app.named_models import WORKSPACE, parse_mapping

TIMEOUT_SECONDS = 30
PARAMETERS, LOCK, SUMMARY = "params.yaml", "dvc.lock", "data/metrics/summary.json"
FORMAT, TIME = "%(objectname) %(refname)", "format-local:%Y-%m-%dT%H:%M:%S"
BRANCHES, EXPERIMENTS = "refs/heads/", "refs/exps/"
INTERNAL = ("celery", "exec", "temp", "apply")  # below EXPERIMENTS, where no run is


class State(NamedTuple):
    """The workspace, a branch, a commit or an experiment, and what its files say."""

    rev: str
    kind: str
    label: str | None
    data: dict[str, Any]


class Reference(NamedTuple):
    """A branch or an experiment."""

    rev: str
    name: str
    baseline: str | None  # the commit from which an experiment was started


def list_states(folder: Path, most: int) -> list[State]:
    """The workspace, branches, and the latest `most` experiments, each with the commit that it was started from.

    Raises ValueError where git cannot list them.
    """
    references = _references(folder, most)
    labels = {each.rev: each.name for each in references if each.baseline is None}
    experiments = defaultdict[str, list[Reference]](list)
    for each in references:
        if each.baseline is not None:
            experiments[each.baseline].append(each)
    data = read_revisions(folder, [*labels, *experiments, *(each.rev for each in references)])
    states = [State(WORKSPACE, WORKSPACE, WORKSPACE, _of_files(_workspace_files(folder)))]
    for rev in dict.fromkeys([*labels, *experiments]):
        states.append(State(rev, "branch" if rev in labels else "commit", labels.get(rev), data[rev]))
        states += [State(each.rev, "experiment", each.name, data[each.rev]) for each in experiments[rev]]
    return states


def _references(folder: Path, most: int) -> list[Reference]:
    listing = run_git(folder, ["for-each-ref", "--sort=-committerdate", f"--format={FORMAT}", BRANCHES, EXPERIMENTS])
    found, experiments = [], 0
    for line in listing.decode("utf-8", "surrogateescape").splitlines():
        rev, name = line.split(" ", 1)
        if name.startswith(BRANCHES):
            found.append(Reference(rev, name.removeprefix(BRANCHES), None))
            continue
        first, second, *rest = name.removeprefix(EXPERIMENTS).split("/", 2)
        if first not in INTERNAL and rest and experiments < most:
            experiments += 1
            found.append(Reference(rev, rest[0], first + second))
    return found


def read_revisions(folder: Path, revisions: list[str]) -> dict[str, dict[str, Any]]:
    """What the files of each revision say, and when it was committed."""
    revisions = list(dict.fromkeys(revisions))
    if not revisions:
        return {}
    paths = PARAMETERS, LOCK, SUMMARY
    files = iter(contents_of(folder, [f"{rev}:./{path}" for rev in revisions for path in paths]))
    data = {rev: _of_files({path: next(files, b"") for path in paths}) for rev in revisions}
    log = ["log", "--no-walk", f"--date={TIME}", "--format=%H %cd", "--stdin"]
    times = run_git(folder, log, "\n".join(data).encode())
    for line in times.decode().splitlines():
        rev, _, when = line.partition(" ")
        data[rev]["timestamp"] = when
    return data


def contents_of(folder: Path, objects: list[str]) -> list[bytes]:
    """The contents of git's objects, in their order; empty where one is missing. Raises ValueError where git fails."""
    stream, contents, place = run_git(folder, ["cat-file", "--batch"], "\n".join([*objects, ""]).encode()), [], 0
    while place < len(stream):
        start = stream.index(b"\n", place) + 1
        head = stream[place : start - 1]
        size = -1 if head.endswith(b" missing") else int(head.rpartition(b" ")[2])
        contents.append(stream[start : start + max(0, size)])
        place = start + size + 1
    return contents


def _workspace_files(folder: Path) -> dict[str, bytes]:
    paths = {path: folder / path for path in (PARAMETERS, LOCK, SUMMARY)}
    return {path: file.read_bytes() if file.is_file() else b"" for path, file in paths.items()}


def _of_files(files: dict[str, bytes]) -> dict[str, Any]:
    parameters, lock, summary = (parse_mapping(files[path]) for path in (PARAMETERS, LOCK, SUMMARY))
    data: dict[str, Any] = {"timestamp": None, "params": parameters, "summary": summary}
    with suppress(AttributeError, KeyError, TypeError):  # where the lock is damaged
        stages = list((lock.get("stages") or {}).values())
        for kind in ("deps", "outs"):
            entries = [entry for stage in stages for entry in stage.get(kind) or []]
            data[kind] = {entry["path"]: {"hash": entry.get("md5")} for entry in entries}
    return data


def run_git(folder: Path, arguments: list[str], content: bytes = b"") -> bytes:
    """The output of git, which is given the content. Raises ValueError where it fails."""
    command = ["git", *arguments]
    try:
        done = subprocess.run(command, cwd=folder, input=content, capture_output=True, timeout=TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"git, which has the runs, cannot be run: {error}") from error
    if done.returncode:
        raise ValueError(f"`{' '.join(command[:2])}` failed: {done.stderr.decode('utf-8', 'replace').strip()}")
    return done.stdout
