"""The runs of a DVC repository: as git lists them, their outputs, and a row for each on the page of runs."""

import hashlib
import io
import json
import math
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from chatmill.app.introduction import content_of, parse_mapping
from chatmill.app.named_models import MODEL_FOLDERS, WORKSPACE
from chatmill.report.markup import Metrics, dotted, get_nested, valid_text
from chatmill.report.summary import fastest

# As git has them: in a second, where `dvc exp show` takes half a second for each new run.

TIMEOUT_SECONDS = 30
FILES = "params.yaml", "dvc.lock", "data/metrics/summary.json"
BRANCHES, EXPERIMENTS = "refs/heads/", "refs/exps/"
INTERNAL = ("celery", "exec", "temp", "apply")  # below EXPERIMENTS, where no run is
MAX_EXPERIMENTS = 500  # that are listed, the latest


class State(NamedTuple):
    rev: str
    kind: str
    label: str | None
    params: dict[str, Any]
    summary: Metrics
    deps: dict[str, str]  # MD5 by path
    outs: dict[str, str]
    when: str | None = None  # committed, in local time


def list_states(folder: Path) -> list[State]:
    """The workspace, then branches and other commits, each before the latest experiments that were started from it.

    Raises ValueError where git cannot list them.
    """
    listing = ["for-each-ref", "--sort=-committerdate", "--format=%(objectname) %(refname)", BRANCHES, EXPERIMENTS]
    branches: dict[str, str] = {}
    experiments = defaultdict[str, list[tuple[str, str]]](list)  # revision and name, by the commit they began at
    remaining = MAX_EXPERIMENTS
    for line in run_git(folder, listing).decode("utf-8", "surrogateescape").splitlines():
        rev, name = line.split(" ", 1)
        parts = name.removeprefix(EXPERIMENTS).split("/", 2)  # refs/exps/AB/CDEF…/NAME
        if name.startswith(BRANCHES):
            branches[rev] = name.removeprefix(BRANCHES)
        elif len(parts) == 3 and parts[0] not in INTERNAL and remaining > 0:
            experiments[parts[0] + parts[1]].append((rev, parts[2]))
            remaining -= 1
    runs: list[tuple[str, str, str | None]] = []
    for rev in dict.fromkeys([*branches, *experiments]):
        runs.append((rev, "branch" if rev in branches else "commit", branches.get(rev)))
        runs += [(experiment, "experiment", name) for experiment, name in experiments[rev]]
    objects = [one for rev, *_ in runs for one in (rev, *(f"{rev}:./{path}" for path in FILES))]
    contents = iter(_contents_of(folder, objects))  # of each run its commit, then its files
    states = [_state(WORKSPACE, WORKSPACE, WORKSPACE, [content_of(folder / path) for path in FILES])]
    for run in runs:
        when = _committed(next(contents))
        states.append(_state(*run, [next(contents) for _ in FILES])._replace(when=when))
    return states


def _committed(commit: bytes) -> str | None:
    """The local time of a commit."""
    found = re.search(rb"^committer .* (\d+) [-+]\d+$", commit, re.MULTILINE)
    with suppress(ValueError, OverflowError, OSError):  # of a date that no clock has
        return found and datetime.fromtimestamp(int(found[1])).isoformat()
    return None


def _contents_of(folder: Path, objects: list[str]) -> list[bytes]:
    """The contents of git's objects; empty where one is missing."""
    stream = io.BytesIO(run_git(folder, ["cat-file", "--batch"], "\n".join([*objects, ""]).encode()))
    contents = []
    for _ in objects:
        size = stream.readline().split()[-1]  # of `SHA TYPE SIZE`, or `NAME missing`
        contents.append(b"" if size == b"missing" else stream.read(int(size) + 1)[:-1])
    return contents


def _state(rev: str, kind: str, label: str | None, files: Iterable[bytes]) -> State:
    """A state, given the contents of FILES; of a damaged lock not all is known."""
    parameters, lock, summary = map(parse_mapping, files)
    md5s: dict[str, dict[str, str]] = {"deps": {}, "outs": {}}
    with suppress(AttributeError, KeyError, TypeError):
        for stage in lock["stages"].values():
            for entries, found in md5s.items():
                found |= {str(entry["path"]): str(entry.get("md5")) for entry in stage.get(entries) or []}
    return State(rev, kind, label, parameters, summary, md5s["deps"], md5s["outs"])


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


# Their outputs, which are read without changing the workspace.

OBJECT = re.compile(r"[0-9a-f]{32}(\.dir)?")  # of DVC's cache


class RunFiles:
    """The outputs of runs, in DVC's cache or in the workspace."""

    def __init__(self, folder: Path) -> None:
        """Raises ValueError if the folder is not in a DVC repository."""
        from dvc.exceptions import DvcException  # imported here because it takes half a second of a server's start
        from dvc.repo import Repo

        try:
            with Repo(str(folder)) as repo:
                self._root, self._cache = Path(repo.root_dir), Path(repo.cache.local.path)
        except DvcException as error:
            raise ValueError(f"{folder}: {error}") from error

    def file(self, run: State, output: Path) -> Path:
        """The path of an output; nothing lies there if it is missing on this machine."""
        if run.rev == WORKSPACE and (self._root / output).is_file():
            return self._root / output
        return self._cache_path(run.outs.get(output.as_posix()))

    def files(self, run: State, output: Path) -> dict[str, Path]:
        """The paths of a folder's files, by name; empty if one of them is missing on this machine."""
        folder = self._root / output
        if run.rev == WORKSPACE and folder.is_dir():
            return {file.name: file for file in folder.iterdir() if file.is_file()}
        try:
            entries = json.loads(self._cache_path(run.outs.get(output.as_posix())).read_bytes())
            files = {entry["relpath"]: self._cache_path(entry["md5"]) for entry in entries}
        except (OSError, ValueError, TypeError, KeyError):
            return {}
        return files if all(file.is_file() for file in files.values()) else {}

    def _cache_path(self, digest: Any) -> Path:
        """The place of an object in DVC's cache, or of nothing: the lock of a branch may say anything."""
        is_object = isinstance(digest, str) and OBJECT.fullmatch(digest)
        return self._cache / digest[:2] / digest[2:] if is_object else self._cache / "none"


def model_dimensions(model: dict[str, Path]) -> dict[str, int]:
    """Depth, vocabulary, parameters and steps of a model, read from its files; empty if they cannot be read."""
    try:
        config = json.loads(model["config.json"].read_bytes())
        with safe_open(model["model.safetensors"], framework="numpy") as weights:
            parameters = sum(prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
        shape = {"depth": config["num_hidden_layers"], "vocabulary": config["vocab_size"], "parameters": parameters}
        steps = get_nested(config, "chatmill", "steps")
        return shape | ({"steps": steps} if isinstance(steps, int) else {})
    except (OSError, ValueError, TypeError, KeyError, SafetensorError):
        return {}


# The rows of the runs page, one for each run.

BENCHMARK = Path("data/metrics/benchmark.json")
CURVE, REPORT = Path("data/metrics/train.tsv"), Path("data/report")
SHORT = 7  # digits of a revision
SEED, CODE_AND_DATA = "train_model.seed", "code and data"
INPUTS = ("stages/", "data/raw/")
FIGURES = (  # of summary.json
    "bits_per_byte",
    "bits_per_byte_answers",
    "skills",
    "skills_held_back",
    "verbatim",
    "bytes_per_token",
    "model_mb",
)

RunRow = dict[str, Any]


def run_rows(states: Sequence[State], folder: Path, files: RunFiles) -> list[RunRow]:
    """All runs, the workspace first, then the latest first; a `name` is unique and not a path in the folder."""
    rows = [run_row(state, files) for state in states]
    mark_copies(states, rows, files)
    tell_apart(rows, list(map(settings_of, states)))
    labels = Counter(run["label"] for run in rows)
    for run in rows:
        names = [run["label"]] if labels[run["label"]] == 1 else []
        free = (
            name for name in (*names, run["rev"][:SHORT]) if run["rev"] == WORKSPACE or not (folder / name).exists()
        )
        run["name"] = next(free, run["rev"])
    rows.sort(key=lambda run: (run["rev"] == WORKSPACE, run["when"] or ""), reverse=True)
    for run in rows:
        run["other_seeds"] = [other["rev"] for other in other_seeds([run], rows)]
    return rows


def mark_copies(states: Sequence[State], rows: Sequence[RunRow], files: RunFiles) -> None:
    """Of the workspace, which is first, and each run with its files one is a copy: the one without a model, if any."""
    workspace, own = states[0], rows[0]
    for output in CURVE, BENCHMARK:  # a run that grows has others than its dvc.lock names
        content = content_of(files.file(workspace, output), math.inf)
        digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if content and digest != workspace.outs.get(output.as_posix()):
            return
    for state, run in zip(states[1:], rows[1:], strict=True):
        if state[3:-1] == workspace[3:-1]:
            (run if own["model"] and not run["model"] else own)["is_copy"] = True


def other_seeds(known: Sequence[RunRow], rows: Iterable[RunRow]) -> list[RunRow]:
    """One run with a model for each seed that the known runs of a group have not: the first among the rows."""
    group, seeds = known[0]["group"], {None, *(run["seed"] for run in known)}
    others = []
    for run in rows if group else ():  # without the workspace, whose model may be older than its parameters
        is_alike = run["group"] == group and run["kind"] != WORKSPACE
        if is_alike and run["model"] and run["seed"] not in seeds:
            seeds.add(run["seed"])
            others.append(run)
    return others


def tell_apart(rows: Sequence[RunRow], settings: Sequence[dict[str, str]]) -> None:
    """Give each run what it differs in from most, and a group: runs that differ by their seed alone."""
    common = {
        key: Counter(found.get(key) for found in settings if found).most_common(1)[0][0]
        for key in dict.fromkeys(key for found in settings for key in found)
    }
    for run, found in zip(rows, settings, strict=True):
        run["seed"] = found.pop(SEED, None)
        run["differs"] = {key: value for key, value in found.items() if value != common[key]}
        run["group"] = _digest(sorted(found.items())) if found else None


def settings_of(state: State) -> dict[str, str]:
    """All parameters of a run by dotted key, and the first digits of a sum of its code and data."""
    if not state.params:
        return {}
    inputs = sorted((path, digest) for path, digest in state.deps.items() if path.startswith(INPUTS))
    return dict(dotted(state.params)) | {CODE_AND_DATA: _digest(inputs)[:7]}


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


def run_row(state: State, files: RunFiles) -> RunRow:
    """The row of a run; unknown values are None."""
    tokenizer = get_nested(state.params, "train_tokenizer", "type")
    training = {key: get_nested(state.params, "train_model", key) for key in ("depth", "steps", "batch_size")}
    return {
        "kind": state.kind,
        "label": valid_text(state.label or state.rev[:SHORT]),
        "rev": state.rev,
        "when": state.when,
        "is_copy": False,
        "model": any(files.files(state, output) for output in MODEL_FOLDERS),
        "report": bool(files.files(state, REPORT)),
        "tokenizer": valid_text(tokenizer) if isinstance(tokenizer, str) else None,
        "vocabulary": None,  # this and the next are read from the model's files
        "parameters": None,
        **{key: finite_number(value) for key, value in training.items()},
        **model_dimensions(files.files(state, MODEL_FOLDERS[-1])),
        **run_metrics(state.summary, parse_mapping(content_of(files.file(state, BENCHMARK)))),
    }


def run_metrics(summary: Metrics, benchmark: Metrics) -> RunRow:
    """The metrics of a run. `timing` says under which conditions a time was measured: others are no match for it."""
    try:
        engine, prompt, milliseconds = fastest(benchmark)
        engine = engine and valid_text(f"{engine}, prompt of {prompt}")
    except (TypeError, ValueError, AttributeError):  # it has another format
        engine = milliseconds = None
    processor, _, _ = str(get_nested(summary, "processor")).partition(",")
    timing = f"{engine}, {get_nested(benchmark, 'machine', 'threads')} threads, {processor}"
    return {
        **{figure: finite_number(summary.get(figure)) for figure in FIGURES},
        "milliseconds_per_token": finite_number(milliseconds),
        "engine": engine,
        "timing": engine and valid_text(timing),
    }


def finite_number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


# The runs of a repository that differ from a given one by their seed alone.


def add_seeds(sides: Sequence[Sequence[str]], folder: Path) -> list[list[str]]:
    """Each side with the runs of other seeds that the repository has, one for each seed, if their model is here.

    Raises ValueError for a side that is no run of the repository, and for two that differ by their seed alone.
    """
    rows = run_rows(list_states(folder), folder, RunFiles(folder))
    found = [[_row(name, rows, folder) for name in side] for side in sides]
    groups = [side[0]["group"] for side in found if side[0]["group"]]
    if len({*groups}) < len(groups):
        raise ValueError("two of the sides differ by their seed alone: compare them without --seeds")
    return [
        [*side, *(run["name"] for run in other_seeds(known, rows))] for side, known in zip(sides, found, strict=True)
    ]


def _row(name: str, rows: Sequence[RunRow], folder: Path) -> RunRow:
    revision = name
    try:
        if not any(name == run["name"] for run in rows):
            command = ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"]
            revision = run_git(folder, command).decode().strip()
        return next(run for run in rows if revision in (run["name"], run["rev"]))
    except (ValueError, StopIteration) as error:
        message = "expected an experiment or branch, whose other seeds are searched: compare paths without --seeds"
        raise ValueError(f"{name}: {message}") from error
