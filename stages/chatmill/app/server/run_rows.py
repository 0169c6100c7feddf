"""The rows of the runs page, one for each run, from the output of `dvc exp show --json`."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from chatmill.app.experiments import MODEL_FOLDERS, WORKSPACE
from chatmill.app.server.live_runs import last_error
from chatmill.app.server.run_files import RunFiles, model_dimensions
from chatmill.report.metrics import Metrics, dotted, get_nested, valid_text
from chatmill.report.speed import fastest
from chatmill.report.summary import ENGINE, PROMPT_TOKENS

BENCHMARK = Path("data/metrics/benchmark.json")
REPORT = Path("data/report")
SEED, CODE_AND_DATA = "train_model.seed", "code and data"
INPUTS = ("stages/", "data/raw/")
MISSING_OUTPUT_ERRORS = ("FileNotFoundError", "OutputNotFoundError")  # of outputs that a run has not written

RunRow = dict[str, Any]


def run_rows(states: list[dict[str, Any]], folder: Path, files: RunFiles) -> list[RunRow]:
    """All runs, the workspace first, then the latest first; a `name` is unique and not a path in the folder."""
    rows = [run_row(state, files) for state in flattened(states)]
    tell_apart(rows)
    name_rows(rows, folder)
    rows.sort(key=lambda run: (run["rev"] == WORKSPACE, run["when"] or ""), reverse=True)
    for run in rows:
        run["other_seeds"] = [other["rev"] for other in other_seeds([run], rows)]
    return rows


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
    """Give each run a name that is unique and not a path in the folder."""
    labels = Counter(run["label"] for run in rows)
    for run in rows:
        run["name"] = unique_name(run, labels, folder)


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
        identity = json.dumps([run["state"] == "done", sorted(found.items())])
        run["group"] = hashlib.sha256(identity.encode()).hexdigest()[:12] if found else None


def settings_of(data: dict[str, Any]) -> dict[str, str]:
    """All parameters of a run by dotted key, and the sum of its code and data."""
    found = file_contents(data.get("params")).get("params.yaml")
    if not isinstance(found, dict):
        return {}
    settings = dict(dotted(found))
    inputs = {path: each.get("hash") for path, each in (data.get("deps") or {}).items() if path.startswith(INPUTS)}
    settings[CODE_AND_DATA] = hashlib.sha256(json.dumps(sorted(inputs.items())).encode()).hexdigest()[:7]
    return settings


def flattened(states: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield each run with its kind, label and state: the workspace, commits, and the experiments after each."""
    for state in states:
        kind = WORKSPACE if state["rev"] == WORKSPACE else "branch" if state["name"] else "commit"
        yield state | {"kind": kind, "label": state["name"] or short_revision(state["rev"]), "state": "done"}
        for experiment in state["experiments"] or []:
            tip = experiment["revs"][0]
            label = experiment["name"] or tip["name"] or short_revision(tip["rev"])
            stage = (experiment["executor"] or {}).get("state", "success")
            found = {"kind": "experiment", "label": label, "state": "done" if stage == "success" else stage}
            yield tip | found | {"last_error": last_error(experiment["executor"]) if stage == "failed" else ""}


def run_row(state: dict[str, Any], files: RunFiles) -> RunRow:
    """The row of a run; unknown values are None."""
    data = state["data"] or {}
    run = {"rev": state["rev"], "outs": data.get("outs") or {}}
    is_done = state["state"] == "done"
    return {
        "kind": state["kind"],
        "label": valid_text(state["label"]),
        "rev": state["rev"],
        "state": state["state"],
        "when": data.get("timestamp"),
        "problem": valid_text("; ".join(problems(state, data))) or None,
        "model": is_done and any(files.files(run, output) for output in MODEL_FOLDERS),
        "report": is_done and bool(files.files(run, REPORT)),
        "settings": settings_of(data),  # until tell_apart
        **run_parameters(file_contents(data.get("params")).get("params.yaml")),
        **model_dimensions(files.files(run, MODEL_FOLDERS[-1]) if is_done else {}),
        **run_metrics(  # until the run is done, the files are those of the run it started from
            file_contents(data.get("metrics")).get("summary.json") if is_done else None,
            files.content(run, BENCHMARK) if is_done else None,
        ),
    }


def file_contents(files: dict[str, Any] | None) -> dict[str, Metrics]:
    """The contents of a run's files, by file name without folders."""
    return {PurePosixPath(path).name: file.get("data") for path, file in (files or {}).items()}


def problems(state: dict[str, Any], data: dict[str, Any]) -> Iterator[str]:
    """Yield a message for each problem of a run: why it failed, or which files cannot be read."""
    if state["state"] == "failed":
        yield f"{state['last_error']}\n`dvc queue logs {state['label']}` has the whole log".strip()
    elif state["error"]:
        yield state["error"]["msg"]
    for path, file in {**(data.get("params") or {}), **(data.get("metrics") or {})}.items():
        error = file.get("error")
        if error and error["type"] not in MISSING_OUTPUT_ERRORS:
            yield f"{PurePosixPath(path).name} cannot be read ({error['type']})"


def run_parameters(params: Metrics | None) -> RunRow:
    """The parameters of a run, from its params.yaml."""
    tokenizer = get_nested(params, "train_tokenizer", "type")
    return {
        "tokenizer": valid_text(tokenizer) if isinstance(tokenizer, str) else None,
        "depth": finite_number(get_nested(params, "train_model", "depth")),
        "vocabulary": None,  # this and the next are read from the model's files
        "parameters": None,
        "steps": finite_number(get_nested(params, "train_model", "steps")),
        "batch_size": finite_number(get_nested(params, "train_model", "batch_size")),
    }


def run_metrics(summary: Metrics | None, benchmark: Metrics | None) -> RunRow:
    """The metrics of a run; if its fastest engine is not known, the time is that of the summary's engine."""
    engine, milliseconds = latency(benchmark)
    if milliseconds is None and (milliseconds := finite_number(get_nested(summary, "token_ms"))) is not None:
        engine = f"{ENGINE}, prompt of about {PROMPT_TOKENS}"
    return {
        "bits_per_byte": finite_number(get_nested(summary, "bits_per_byte")),
        "bits_per_byte_of_answers": finite_number(get_nested(summary, "bits_per_byte_answers")),
        "skills": finite_number(get_nested(summary, "skills")),
        "skills_held_back": finite_number(get_nested(summary, "skills_held_back")),
        "hits_at_1": finite_number(get_nested(summary, "hits_at_1")),
        "verbatim": finite_number(get_nested(summary, "verbatim")),
        "bytes_per_token": finite_number(get_nested(summary, "bytes_per_token")),
        "milliseconds_per_token": milliseconds,
        "engine": engine,
        "graph_megabytes": finite_number(get_nested(summary, "model_mb")),
    }


def latency(benchmark: Metrics | None) -> tuple[str | None, float | None]:
    """The fastest engine and its milliseconds per token; None if benchmark.json is missing or has another format."""
    try:
        engine, prompt, milliseconds = fastest(benchmark) if isinstance(benchmark, dict) else (None, None, None)
    except (TypeError, ValueError):
        return None, None
    return engine and valid_text(f"{engine}, prompt of {prompt}"), finite_number(milliseconds)


def unique_name(run: RunRow, labels: Counter[str], folder: Path) -> str:
    """The label of a run if it is unique, else the short or the full revision."""
    if run["state"] != "done":
        return f"{run['label']} ({run['state']})"  # DVC has no name for it
    if run["rev"] == WORKSPACE:
        return WORKSPACE
    names = [run["label"]] if labels[run["label"]] == 1 else []
    candidates: Iterator[str] = (
        name for name in (*names, short_revision(run["rev"]), run["rev"]) if not (folder / name).exists()
    )
    return next(candidates)


def short_revision(revision: str) -> str:
    """The first seven digits of a revision."""
    return revision if revision == WORKSPACE else revision[:7]


def finite_number(value: Any) -> float | None:
    """The value if it is a finite number, else None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None
