"""A row for each run, from what `dvc exp show --json` says of a repository."""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from chatmill.app.experiments import MODEL_FOLDERS, WORKSPACE
from chatmill.app.server.run_files import RunFiles, model_dimensions
from chatmill.report.metrics import Metrics, get_nested
from chatmill.report.speed import fastest
from chatmill.report.summary import ENGINE, PROMPT_TOKENS

BENCHMARK = Path("data/metrics/benchmark.json")
REPORT = Path("data/report")
MISSING_OUTPUT_ERRORS = ("FileNotFoundError", "OutputNotFoundError")  # by a run that has not come so far

RunRow = dict[str, Any]


def run_rows(states: list[dict[str, Any]], folder: Path, files: RunFiles) -> list[RunRow]:
    """All runs, the workspace first and then by age; `name` is one that a run alone has, and no path in the folder."""
    found = [run_row(state, files) for state in flattened(states)]
    labels = Counter(run["label"] for run in found)
    for run in found:
        run["name"] = unique_name(run, labels, folder)
    return sorted(found, key=lambda run: (run["rev"] == WORKSPACE, run["when"] or ""), reverse=True)


def flattened(states: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each run with its kind, its label and how far it is: the workspace, commits, and the experiments after each."""
    for state in states:
        kind = WORKSPACE if state["rev"] == WORKSPACE else "branch" if state["name"] else "commit"
        yield state | {"kind": kind, "label": state["name"] or short_revision(state["rev"]), "state": "done"}
        for experiment in state["experiments"] or []:
            tip = experiment["revs"][0]
            label = experiment["name"] or tip["name"] or short_revision(tip["rev"])
            stage = (experiment["executor"] or {}).get("state", "success")
            yield tip | {"kind": "experiment", "label": label, "state": "done" if stage == "success" else stage}


def run_row(state: dict[str, Any], files: RunFiles) -> RunRow:
    """What is known of a run; null is what is not."""
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
        **run_parameters(file_contents(data.get("params")).get("params.yaml")),
        **model_dimensions(files.files(run, MODEL_FOLDERS[-1]) if is_done else {}),
        **run_metrics(  # before it is done, they are of the run it began from
            file_contents(data.get("metrics")).get("summary.json") if is_done else None,
            files.content(run, BENCHMARK) if is_done else None,
        ),
    }


def file_contents(files: dict[str, Any] | None) -> dict[str, Metrics]:
    """What the files of a run hold, by their names without folders."""
    return {PurePosixPath(path).name: file.get("data") for path, file in (files or {}).items()}


def problems(state: dict[str, Any], data: dict[str, Any]) -> Iterator[str]:
    """What of a run cannot be read."""
    if state["state"] == "failed":
        yield f"`dvc queue logs {state['label']}` tells why"
    elif state["error"]:
        yield state["error"]["msg"]
    for path, file in {**(data.get("params") or {}), **(data.get("metrics") or {})}.items():
        error = file.get("error")
        if error and error["type"] not in MISSING_OUTPUT_ERRORS:
            yield f"{PurePosixPath(path).name} cannot be read ({error['type']})"


def run_parameters(params: Metrics | None) -> RunRow:
    """What a run was asked for."""
    kind = get_nested(params, "train_tokenizer", "type")
    return {
        "tokenizer": valid_text(kind) if isinstance(kind, str) else None,
        "depth": finite_number(get_nested(params, "train_model", "depth")),
        "vocabulary": None,  # as only its model tells, as are its parameters
        "parameters": None,
        "steps": finite_number(get_nested(params, "train_model", "steps")),
        "batch_size": finite_number(get_nested(params, "train_model", "batch_size")),
    }


def run_metrics(summary: Metrics | None, benchmark: Metrics | None) -> RunRow:
    """What was measured of a run; where its fastest engine is not known, the time is that of the summary's engine."""
    engine, milliseconds = latency(benchmark)
    if milliseconds is None and (milliseconds := finite_number(get_nested(summary, "token_ms"))) is not None:
        engine = f"{ENGINE}, prompt of about {PROMPT_TOKENS}"
    return {
        "bits_per_byte": finite_number(get_nested(summary, "bits_per_byte")),
        "bits_per_byte_of_answers": finite_number(get_nested(summary, "bits_per_byte_answers")),
        "skills": finite_number(get_nested(summary, "skills")),
        "skills_held_back": finite_number(get_nested(summary, "skills_held_back")),
        "bytes_per_token": finite_number(get_nested(summary, "bytes_per_token")),
        "milliseconds_per_token": milliseconds,
        "engine": engine,
        "graph_megabytes": finite_number(get_nested(summary, "model_mb")),
    }


def latency(benchmark: Metrics | None) -> tuple[str | None, float | None]:
    """The fastest engine and its milliseconds for a token; None where they were measured otherwise, or not at all."""
    try:
        engine, prompt, milliseconds = fastest(benchmark) if isinstance(benchmark, dict) else (None, None, None)
    except (TypeError, ValueError):
        return None, None
    return engine and valid_text(f"{engine}, prompt of {prompt}"), finite_number(milliseconds)


def unique_name(run: RunRow, labels: Counter[str], folder: Path) -> str:
    """The label of a run where it stands for this one alone, else its revision, short or whole."""
    if run["state"] != "done":
        return f"{run['label']} ({run['state']})"  # DVC knows it by no name
    if run["rev"] == WORKSPACE:
        return WORKSPACE
    names = [run["label"]] if labels[run["label"]] == 1 else []
    found: Iterator[str] = (
        name for name in (*names, short_revision(run["rev"]), run["rev"]) if not (folder / name).exists()
    )
    return next(found)


def short_revision(revision: str) -> str:
    """As much of a revision as tells it apart."""
    return revision if revision == WORKSPACE else revision[:7]


def finite_number(value: Any) -> float | None:
    """A number; None for what is none, or not finite."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


def valid_text(value: str) -> str:
    """Text that can be written as UTF-8."""
    return value.encode("utf-8", "replace").decode()
