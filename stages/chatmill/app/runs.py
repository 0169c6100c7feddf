"""The runs of a DVC repository: as git lists them, their outputs, and a row for each on the page of runs."""

import hashlib
import json
import math
import subprocess
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack, suppress
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple

from safetensors import SafetensorError, safe_open

from chatmill.app.introduction import parse_mapping
from chatmill.app.named_models import MODEL_FOLDERS, WORKSPACE
from chatmill.report.markup import Metrics, dotted, get_nested, valid_text
from chatmill.report.speed import fastest

# As git has them: in a second, where `dvc exp show` takes half a second for each new run.

TIMEOUT_SECONDS = 30
FILES = "params.yaml", "dvc.lock", "data/metrics/summary.json"
FORMAT, TIME = "%(objectname) %(refname)", "format-local:%Y-%m-%dT%H:%M:%S"
BRANCHES, EXPERIMENTS = "refs/heads/", "refs/exps/"
INTERNAL = ("celery", "exec", "temp", "apply")  # below EXPERIMENTS, where no run is


class State(NamedTuple):
    rev: str
    kind: str
    label: str | None
    data: dict[str, Any]


class Reference(NamedTuple):
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
    own = [file.read_bytes() if file.is_file() else b"" for file in (folder / path for path in FILES)]
    states = [State(WORKSPACE, WORKSPACE, WORKSPACE, _of_files(own))]
    for rev in dict.fromkeys([*labels, *experiments]):
        states.append(State(rev, "branch" if rev in labels else "commit", labels.get(rev), data[rev]))
        states += [State(each.rev, "experiment", each.name, data[each.rev]) for each in experiments[rev]]
    return states


def _references(folder: Path, most: int) -> list[Reference]:
    """The branches, and the latest `most` experiments, refs/exps/AB/CDEF…/NAME by their baseline's hash."""
    listing = run_git(folder, ["for-each-ref", "--sort=-committerdate", f"--format={FORMAT}", BRANCHES, EXPERIMENTS])
    found, experiments = [], 0
    for line in listing.decode("utf-8", "surrogateescape").splitlines():
        rev, name = line.split(" ", 1)
        if name.startswith(BRANCHES):
            found.append(Reference(rev, name.removeprefix(BRANCHES), None))
            continue
        parts = name.removeprefix(EXPERIMENTS).split("/", 2)
        if len(parts) == 3 and parts[0] not in INTERNAL and experiments < most:
            experiments += 1
            found.append(Reference(rev, parts[2], parts[0] + parts[1]))
    return found


def read_revisions(folder: Path, revisions: list[str]) -> dict[str, dict[str, Any]]:
    """What the files of each revision say, and when it was committed."""
    revisions = list(dict.fromkeys(revisions))
    if not revisions:
        return {}
    files = iter(contents_of(folder, [f"{rev}:./{path}" for rev in revisions for path in FILES]))
    data = {rev: _of_files([next(files, b"") for _ in FILES]) for rev in revisions}
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


def _of_files(contents: list[bytes]) -> dict[str, Any]:
    """What FILES say, given their contents."""
    parameters, lock, summary = map(parse_mapping, contents)
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


# Their outputs, which are read without changing the workspace.

WEIGHTS, CONFIG_FILE = "model.safetensors", "config.json"


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

    def files(self, run: dict[str, Any], output: Path) -> dict[str, Path]:
        """The paths of an output's files, by name; empty if one of them is missing on this machine."""
        folder = self._root / output
        if run["rev"] == WORKSPACE and folder.is_dir():
            return {file.name: file for file in folder.iterdir()}
        digest = run["outs"].get(output.as_posix(), {}).get("hash") or ""
        try:
            entries = json.loads(self._cache_path(digest).read_bytes()) if digest.endswith(".dir") else []
            files = {entry["relpath"]: self._cache_path(entry["md5"]) for entry in entries}
        except (OSError, ValueError, TypeError, KeyError):
            return {}
        return files if all(file.is_file() for file in files.values()) else {}

    def content(self, run: dict[str, Any], output: Path) -> Any:
        """The content of an output that is a JSON file; None if it is missing on this machine."""
        try:
            return json.loads(self.file(run, output).read_bytes())
        except (OSError, ValueError):
            return None

    def file(self, run: dict[str, Any], output: Path) -> Path:
        """The path of an output that is a file; nothing lies there if it is missing on this machine."""
        digest = run["outs"].get(output.as_posix(), {}).get("hash") or "none"
        return self._root / output if run["rev"] == WORKSPACE else self._cache_path(digest)

    def read(self, revision: str, output: Path, most_bytes: int) -> bytes | None:
        """The bytes of a file that a run wrote, or is writing; None if it is missing or has more than `most_bytes`."""
        from dvc.api import DVCFileSystem
        from dvc.exceptions import DvcException
        from dvc.repo import Repo
        from dvc_data.index import DataIndexError

        own = self._root / output
        with suppress(OSError, DataIndexError, DvcException), ExitStack() as opened:
            if revision == WORKSPACE and own.is_file():
                stream: IO[bytes] = opened.enter_context(own.open("rb"))
            else:
                repo = opened.enter_context(Repo(str(self._root), rev=None if revision == WORKSPACE else revision))
                stream = opened.enter_context(DVCFileSystem(repo).open(output.as_posix()))
            content = stream.read(most_bytes + 1)
            return content if len(content) <= most_bytes else None
        return None

    def _cache_path(self, digest: str) -> Path:
        return self._cache / digest[:2] / digest[2:]


def model_dimensions(model: dict[str, Path]) -> dict[str, int]:
    """Depth, vocabulary, parameters and steps of a model, read from its files; empty if they cannot be read."""
    try:
        config = json.loads(model[CONFIG_FILE].read_bytes())
        with safe_open(model[WEIGHTS], framework="numpy") as weights:
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
OF_STATE = {"kind", "label", "rev", "when", "is_copy", "depth", "steps"}  # what two rows of one run may differ in

RunRow = dict[str, Any]


def run_rows(states: list[State], folder: Path, files: RunFiles) -> list[RunRow]:
    """All runs, the workspace first, then the latest first; a `name` is unique and not a path in the folder."""
    rows = [run_row(state, files) for state in states]
    for state, run in zip(states, rows, strict=True):
        if state.kind == WORKSPACE and is_unchanged(state, files):
            mark_copies(state, run, [*zip(states, rows, strict=True)])
    tell_apart(rows)
    name_rows(rows, folder)
    rows.sort(key=lambda run: (run["rev"] == WORKSPACE, run["when"] or ""), reverse=True)
    for run in rows:
        run["other_seeds"] = [other["rev"] for other in other_seeds([run], rows)]
    return rows


def is_unchanged(workspace: State, files: RunFiles) -> bool:
    """Whether the workspace has the curve and times that its dvc.lock names: a run that grows has others."""
    outs = workspace.data.get("outs") or {}
    for output in CURVE, BENCHMARK:
        file = files.file({"rev": WORKSPACE, "outs": outs}, output)
        digest = outs.get(output.as_posix(), {}).get("hash")
        if file.is_file() and hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest() != digest:
            return False
    return True


def mark_copies(workspace: State, run: RunRow, others: Iterable[tuple[State, RunRow]]) -> None:
    """Of the workspace and each run with its files one is a copy: the other one has all outputs on this machine."""
    for other, found in others:
        if found is not run and other.data | {"timestamp": None} == workspace.data:
            differing = [key for key in run.keys() - OF_STATE if run[key] != found[key]]
            if all(found[key] in (None, False) for key in differing):
                (found if differing else run)["is_copy"] = True


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


def name_rows(rows: Collection[RunRow], folder: Path) -> None:
    """Name each run by its label if that is unique, else by its short or full revision."""
    labels = Counter(run["label"] for run in rows)
    for run in rows:
        label = [run["label"]] if labels[run["label"]] == 1 else []
        names = (*label, run["rev"][:SHORT], run["rev"])
        is_workspace = run["rev"] == WORKSPACE
        run["name"] = WORKSPACE if is_workspace else next(name for name in names if not (folder / name).exists())


def tell_apart(rows: list[RunRow]) -> None:
    """Give each run what its settings differ in from those of most, and a group: runs that differ by their seed alone.

    The settings are taken from the rows. Where code or data differ alone, the first digits of their sum are told.
    """
    settings = [run.pop("settings") for run in rows]
    common = {
        key: Counter(found.get(key) for found in settings if found).most_common(1)[0][0]
        for key in dict.fromkeys(key for found in settings for key in found)
    }
    for run, found in zip(rows, settings, strict=True):
        run["seed"] = found.pop(SEED, None)
        run["differs"] = {key: value for key, value in found.items() if value != common[key]}
        identity = json.dumps(sorted(found.items()))
        run["group"] = hashlib.sha256(identity.encode()).hexdigest()[:12] if found else None


def settings_of(data: dict[str, Any]) -> dict[str, str]:
    """All parameters of a run by dotted key, and the sum of its code and data."""
    if not data["params"]:
        return {}
    settings = dict(dotted(data["params"]))
    inputs = {path: each.get("hash") for path, each in (data.get("deps") or {}).items() if path.startswith(INPUTS)}
    settings[CODE_AND_DATA] = hashlib.sha256(json.dumps(sorted(inputs.items())).encode()).hexdigest()[:7]
    return settings


def run_row(state: State, files: RunFiles) -> RunRow:
    """The row of a run; unknown values are None."""
    run, params = {"rev": state.rev, "outs": state.data.get("outs") or {}}, state.data["params"]
    tokenizer = get_nested(params, "train_tokenizer", "type")
    return {
        "kind": state.kind,
        "label": valid_text(state.label or state.rev[:SHORT]),
        "rev": state.rev,
        "when": state.data["timestamp"],
        "is_copy": False,
        "model": any(files.files(run, output) for output in MODEL_FOLDERS),
        "report": bool(files.files(run, REPORT)),
        "settings": settings_of(state.data),  # until tell_apart
        "tokenizer": valid_text(tokenizer) if isinstance(tokenizer, str) else None,
        "vocabulary": None,  # this and the next are read from the model's files
        "parameters": None,
        **{key: finite_number(get_nested(params, "train_model", key)) for key in ("depth", "steps", "batch_size")},
        **model_dimensions(files.files(run, MODEL_FOLDERS[-1])),
        **run_metrics(state.data["summary"], files.content(run, BENCHMARK)),
    }


def run_metrics(summary: Metrics | None, benchmark: Metrics | None) -> RunRow:
    """The metrics of a run. `timing` says under which conditions a time was measured: others are no match for it."""
    try:
        engine, prompt, milliseconds = fastest(benchmark or {})
        engine = engine and valid_text(f"{engine}, prompt of {prompt}")
    except (TypeError, ValueError, AttributeError):  # it has another format
        engine = milliseconds = None
    processor, _, _ = str(get_nested(summary, "processor")).partition(",")
    timing = f"{engine}, {get_nested(benchmark, 'machine', 'threads')} threads, {processor}"
    return {
        "bits_per_byte": finite_number(get_nested(summary, "bits_per_byte")),
        "bits_per_byte_of_answers": finite_number(get_nested(summary, "bits_per_byte_answers")),
        "skills": finite_number(get_nested(summary, "skills")),
        "skills_held_back": finite_number(get_nested(summary, "skills_held_back")),
        "verbatim": finite_number(get_nested(summary, "verbatim")),
        "bytes_per_token": finite_number(get_nested(summary, "bytes_per_token")),
        "milliseconds_per_token": finite_number(milliseconds),
        "engine": engine,
        "timing": engine and valid_text(timing),
        "graph_megabytes": finite_number(get_nested(summary, "model_mb")),
    }


def finite_number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


# The runs of a repository that differ from a given one by their seed alone.

MAX_EXPERIMENTS = 500


def add_seeds(sides: Sequence[Sequence[str]], folder: Path) -> list[list[str]]:
    """Each side with the runs of other seeds that the repository has, one for each seed, if their model is here.

    Raises ValueError for a side that is no run of the repository, and for two that differ by their seed alone.
    """
    rows = run_rows(list_states(folder, MAX_EXPERIMENTS), folder, RunFiles(folder))
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
