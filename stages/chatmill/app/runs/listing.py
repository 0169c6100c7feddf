"""The runs of a repository as git has them: in a second, where `dvc exp show` takes half a second for each new run.

DVC alone knows which runs wait, are running or have failed, and what cannot be read.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import yaml

from chatmill.app.named_models import WORKSPACE
from chatmill.pipeline.processes import SOURCE_ROOT

TIMEOUT_SECONDS = 30
PARAMETERS, LOCK, SUMMARY = "params.yaml", "dvc.lock", "data/metrics/summary.json"
FORMAT, TIME = "%(objectname) %(refname)", "format-local:%Y-%m-%dT%H:%M:%S"
BRANCHES, EXPERIMENTS = "refs/heads/", "refs/exps/"
INTERNAL = ("celery", "exec", "temp", "apply")  # below EXPERIMENTS, where no run is
MAX_BYTES, MAX_NESTED, NESTED_LISTS = 1 << 20, 5000, b"- - - - "  # of a file; a deeper level has a longer indent
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

State = dict[str, Any]  # as `dvc exp show --json` prints it


class Reference(NamedTuple):
    """A branch or an experiment."""

    rev: str
    name: str
    baseline: str | None  # the commit from which an experiment was started


def git_states(folder: Path, most: int) -> list[State]:
    """The workspace, branches, and the latest `most` experiments. Raises ValueError where git cannot list them."""
    references = _references(folder, most)
    branches = {each.rev: each.name for each in references if each.baseline is None}
    experiments = defaultdict(list)
    for each in references:
        if each.baseline is not None:
            experiments[each.baseline].append(each)
    commits = [*branches, *(rev for rev in experiments if rev not in branches)]
    data = read_revisions(folder, [*commits, *(each.rev for some in experiments.values() for each in some)])
    states = [_state(WORKSPACE, WORKSPACE, _of_files(_workspace_files(folder)), [])]
    for rev in commits:
        below = [
            {"name": each.name, "revs": [_state(each.rev, None, data[each.rev], None)], "executor": None}
            for each in experiments[rev]
        ]
        states.append(_state(rev, branches.get(rev), data[rev], below))
    return states


def _state(rev: str, name: str | None, data: dict[str, Any], experiments: list[State] | None) -> State:
    return {"rev": rev, "name": name, "error": None, "data": data, "experiments": experiments}


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
    parameters, lock, summary = (_parsed(files[path]) for path in (PARAMETERS, LOCK, SUMMARY))
    metrics = {SUMMARY: {"data": summary}} if summary else {}
    data = {"timestamp": None, "params": {PARAMETERS: {"data": parameters}}, "metrics": metrics}
    with suppress(AttributeError, KeyError, TypeError):  # where the lock is damaged
        stages = list((lock.get("stages") or {}).values())
        for kind in ("deps", "outs"):
            entries = [entry for stage in stages for entry in stage.get(kind) or []]
            data[kind] = {entry["path"]: {"hash": entry.get("md5")} for entry in entries}
    return data


def _parsed(content: bytes) -> dict[str, Any]:
    """The keys and values of a YAML or JSON file; none where it has no such content, or might be nested very deeply."""
    if len(content) > MAX_BYTES or content.count(b"[") + content.count(b"{") > MAX_NESTED or NESTED_LISTS in content:
        return {}  # libyaml has no limit: it would use up the stack, and end the server
    try:
        found = json.loads(content) if content.startswith(b"{") else yaml.load(content, LOADER)  # safe
    except (ValueError, RecursionError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


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


# The runs of a repository as DVC has them, and other commands of DVC, in processes that end with the server.

DVC_TIMEOUT_SECONDS = 120  # DVC takes half a second for a run that is not in its cache
MAX_DVC_BYTES = 64 << 20  # of DVC's output, about 20 kB a run
MAX_BASELINES = 100  # commits whose experiments are listed, beside the branches
DVC_PROGRAM = f"""
import sys
sys.path.append({SOURCE_ROOT!r})
from chatmill.pipeline.processes import die_with_parent
die_with_parent()
from dvc.cli import main
sys.exit(main(sys.argv[1:]))
"""  # DVC's program, which ends with the server, even if that is killed
EXPERIMENT = re.compile(r"^refs/exps/([0-9a-f]{2})/([0-9a-f]{38})/", re.MULTILINE)


class DvcError(ValueError):
    """What DVC says that it cannot do."""


async def exp_show(folder: Path) -> list[dict[str, Any]]:
    """The output of `dvc exp show`: workspace, branches and experiments. Raises ValueError with DVC's message."""
    revisions = [part for revision in await baselines(folder) for part in ("--rev", revision)]
    try:
        output = await run_dvc(["exp", "show", "--json", "--all-branches", "--rev", "HEAD", *revisions], folder)
    except DvcError as error:
        message = f"`dvc exp show`, which lists the runs of a project under git and DVC, failed: {error}"
        raise ValueError(message) from error
    try:
        states: list[dict[str, Any]] = json.loads(output)
    except ValueError as error:
        raise ValueError(f"`dvc exp show --json` printed no JSON ({error}): run it in a terminal") from error
    return states


async def run_dvc(arguments: list[str], folder: Path) -> bytes:
    """The output of DVC. Raises DvcError with its message."""
    status, output, errors = await run_program([sys.executable, "-P", "-c", DVC_PROGRAM, *arguments], folder)
    if status:
        lines = [line.removeprefix("ERROR: ") for line in errors.splitlines() if line.startswith("ERROR: ")]
        raise DvcError(lines[0] if lines else errors.strip().rpartition("\n")[2])
    return output


async def baselines(folder: Path) -> list[str]:
    """The commits from which experiments were started, the latest experiment's first; none without git."""
    command = ["git", "for-each-ref", "--sort=-creatordate", "--format=%(refname)", "refs/exps"]
    try:
        status, refs, _ = await run_program(command, folder)
    except ValueError:
        return []
    commits = dict.fromkeys("".join(parts) for parts in EXPERIMENT.findall(refs.decode("utf-8", "replace")))
    return [] if status else list(commits)[:MAX_BASELINES]


async def run_program(command: list[str], folder: Path) -> tuple[int, bytes, str]:
    """Exit code, output and errors of a program. Raises ValueError if it takes too long or cannot be started."""
    with TemporaryFile() as output, TemporaryFile() as errors:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,  # so that Ctrl-C reaches the server alone
            )
        except OSError as error:
            raise ValueError(f"{command[0]} cannot be started: {error.strerror}") from error
        try:
            await asyncio.wait_for(process.wait(), DVC_TIMEOUT_SECONDS)
        except TimeoutError as error:
            raise ValueError(
                f"reading the runs took over {DVC_TIMEOUT_SECONDS} s: "
                "press Refresh to continue; DVC caches what it has read"
            ) from error
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return process.returncode or 0, read_output(output), read_output(errors).decode("utf-8", "replace")


def read_output(stream: IO[bytes]) -> bytes:
    """The output of a program. Raises ValueError if it is too long."""
    if (size := stream.seek(0, os.SEEK_END)) > MAX_DVC_BYTES:
        raise ValueError(
            f"DVC's listing of the runs: expected at most {MAX_DVC_BYTES:,} bytes, got {size:,}: "
            "remove old experiments with `dvc exp remove`"
        )
    stream.seek(0)
    return stream.read()
