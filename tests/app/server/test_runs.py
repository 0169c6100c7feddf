import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from chatmill.app.runs import RunFiles, State, run_metrics, run_rows
from chatmill.app.server.runs import Runs
from support.run_repository import CURVE, RunRepository

HOSTILE = "<img/src=x/onerror=alert(1)>"


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Two commits on main with an experiment each, and branches of every kind."""
    made = RunRepository(tmp_path_factory.mktemp("runs"))
    made.measure(1.9, depth=2)
    made.experiment("early")
    made.write("notes.txt", "Another commit.")
    made.commit()
    made.measure(1.5, tokenizer="byte", milliseconds=0.5)
    made.experiment("late")
    made.git("update-ref", "refs/exps/stash", "HEAD")  # as DVC does while it starts an experiment
    made.measure(3.0)
    made.branch(HOSTILE)
    made.write("data/metrics/summary.json", '{"bits')
    made.branch("damaged")
    made.write("data/metrics/summary.json", json.dumps({"bits_per_byte": {"all": 0.5}, "skills": [1]}))
    made.time({"onnx": {"cache": {"long": 3}}})
    made.branch("otherwise")
    made.measure(1.25)
    (made.folder / "dvc.lock").unlink()
    made.branch("unfetched")
    made.write("dvc.yaml", "stages: [")
    made.branch("broken")
    made.write("params.yaml", "a:")
    made.branch("data")
    made.measure(1.75)
    return made


@pytest.fixture(scope="module")
def listed(repository):
    """The runs of the repository after a listing, with their rows by label."""
    found = Runs(repository.folder)
    listing = asyncio.run(found.listing())
    assert listing["problem"] is None
    found.rows = {run["label"]: run for run in listing["runs"]}
    return found


@pytest.fixture(scope="module")
def client(listed):
    """A client of the routes, after a listing."""
    with TestClient(Starlette(routes=listed.routes)) as client:
        yield client


def state(rev, kind="experiment", params=None, deps=None):
    return State(rev, kind, rev[0], params or {}, {}, deps or {}, {})


def rows_of(repository, *states):
    return run_rows(list(states), repository.folder, RunFiles(repository.folder))


def test_workspace_branches_and_experiments_of_all_commits_are_listed(listed):
    kinds = {label: run["kind"] for label, run in listed.rows.items()}
    branches = dict.fromkeys(("main", "damaged", "otherwise", "unfetched", "broken", "data", HOSTILE), "branch")
    commit = {label: "commit" for label in kinds if len(label) == 7 and kinds[label] == "commit"}
    assert kinds == {"workspace": "workspace", "early": "experiment", "late": "experiment", **branches, **commit}
    assert len(commit) == 1


def test_a_run_has_the_figures_that_it_measured(listed):
    run = listed.rows["late"]
    assert (run["bits_per_byte"], run["bits_per_byte_answers"]) == (1.5, 1.5)
    assert (run["skills"], run["skills_held_back"], run["bytes_per_token"]) == (0.5, 0.25, 3.0)
    assert (run["milliseconds_per_token"], run["engine"]) == (0.5, "onnx, prompt of 128")
    assert (run["model_mb"], run["verbatim"]) == (7.5, 0.0625)
    assert (run["tokenizer"], run["steps"], run["batch_size"]) == ("byte", 40, 1024)


def test_the_workspace_comes_first_and_then_the_latest(listed):
    first, *others = listed.rows.values()
    times = [run["when"] or "" for run in others]
    assert first["label"] == "workspace" and times == sorted(times, reverse=True)


def test_the_workspace_and_its_commit_are_one_row_unless_they_differ(repository):
    def rows():
        runs = asyncio.run(Runs(repository.folder).listing())["runs"]
        return [(run["label"], run["model"]) for run in runs if run["label"] in ("workspace", "main", "applied")]

    curve, benchmark = (repository.folder / "data/metrics" / name for name in ("train.tsv", "benchmark.json"))
    cached, away = repository.folder / ".dvc/cache/files", repository.folder / "away"
    two = [("workspace", True), ("main", True)]
    assert rows() == two
    repository.git("stash", "-q")
    times = benchmark.read_text()
    for text, measured, expected in (
        (CURVE, times, two[1:]),
        (CURVE + "60\t1.5\t\n", times, two),  # a run grows
        (CURVE, times + " ", two),  # other times
    ):
        curve.unlink()
        curve.write_text(text)
        benchmark.unlink()
        benchmark.write_text(measured)
        assert rows() == expected
    benchmark.write_text(times)
    cached.rename(away)
    assert rows() == two[:1]  # which has its outputs, where the cache has none
    away.rename(cached)
    repository.experiment("applied")
    assert len(rows()) == 2  # without the workspace
    repository.git(
        "update-ref", "-d", f"refs/exps/{(head := repository.git('rev-parse', 'HEAD'))[:2]}/{head[2:]}/applied"
    )
    repository.git("stash", "pop", "-q")


def test_times_are_those_after_prompts_of_about_equal_length(listed):
    """With others no time is compared."""
    long = {"onnx": {"cache": {"992": {"token_ms": {"p50": 0.1}}, "100": {"token_ms": {"p50": 0.4}}}}}
    assert run_metrics({"processor": "old, float32"}, long)["milliseconds_per_token"] == 0.4
    assert run_metrics({"processor": "old, float32"}, long)["timing"] == "onnx, prompt of 100, None threads, old"
    for other in ({"machine": {"threads": 2}}, {"onnx_int8": long["onnx"], "onnx": {}}):
        timing = run_metrics({"processor": "old"}, long | other)["timing"]
        assert timing != "onnx, prompt of 100, None threads, old" and timing.endswith(" threads, old")
    only_long = {"pytorch": {"cache": {"992": {"token_ms": {"p50": 0.1}}}}}
    assert run_metrics({}, long | only_long)["engine"] == "onnx, prompt of 100"  # not the faster one after another
    assert listed.rows["late"]["timing"].startswith("onnx, prompt of 128, ")


def test_a_curve_and_a_report_are_those_of_the_run(client):
    curve = {"validation_bits_per_byte": [[20, 3.75], [40, 2.5]], "bits_per_byte": [[10, 4.5], [20, 3.5]]}
    assert client.get("/runs/early/curve.json").json() == curve
    assert "A report" in client.get("/runs/early/report").text


def test_runs_that_differ_by_their_seed_alone_are_a_group(repository):
    def of(rev, seed, **more):
        section = {"depth": 3, "seed": seed, **more}
        deps = {"stages/train_model.py": more.pop("code", "a"), "data/tokens": str(seed)}
        return state(rev * 40, deps=deps, params={"train_model": section})

    runs = [of("a", 1), of("b", 2), of("c", 3, steps=5), of("d", 4, code="b"), of("e", 5)]
    rows = {run["rev"][0]: run for run in rows_of(repository, state("0" * 40, "branch"), *runs)}
    assert rows["a"]["group"] == rows["b"]["group"] == rows["e"]["group"] is not None
    assert len({run["group"] for run in rows.values()}) == 4  # one of them is None
    assert [rows[name]["seed"] for name in "ab"] == ["1", "2"] and rows["0"]["seed"] is None
    assert rows["a"]["differs"] == rows["0"]["differs"] == {}
    assert rows["c"]["differs"] == {"train_model.steps": "5"}
    assert set(rows["d"]["differs"]) == {"code and data", "train_model.code"}


def test_however_many_ask_the_runs_are_listed_once_and_kept(repository):
    async def ask(found):
        first = await asyncio.gather(*(found.listing(refresh=True) for _ in range(20)))
        return [*first, await found.listing()]

    listings = asyncio.run(ask(Runs(repository.folder)))
    assert all(listing is listings[0] for listing in listings)


@pytest.mark.parametrize(
    "commands, problem",
    [
        ([], "not inside of a DVC repository"),
        (["git init -q"], "not inside of a DVC repository"),
        (["dvc init -q --no-scm"], "not a git repository"),
        (["git init -q", "dvc init -q"], None),
    ],
)
def test_a_folder_without_runs_says_why(tmp_path, commands, problem):
    for command in commands:
        program, *arguments = command.split()
        subprocess.run(
            [*([sys.executable, "-m"] if program == "dvc" else []), program, *arguments], cwd=tmp_path, check=True
        )
    listing = asyncio.run(Runs(tmp_path).listing())
    if problem:
        assert listing["runs"] == [] and problem in listing["problem"]
    else:
        assert [run["label"] for run in listing["runs"]] == ["workspace"] and listing["problem"] is None


def test_a_folder_that_is_gone_is_told():
    assert "/nowhere/at/all" in asyncio.run(Runs(Path("/nowhere/at/all")).listing())["problem"]


def test_the_lock_of_a_branch_names_no_file_outside_the_cache(tmp_path):
    made = RunRepository(tmp_path / "runs")
    (tmp_path / "secret").write_text("a secret")
    listing = [{"relpath": "index.html", "md5": f"/{tmp_path}/secret"}]
    (tmp_path / "x.dir").write_text(json.dumps(listing))
    for digest in (f"/{tmp_path}/secret", f"/{tmp_path}/x.dir"):
        outs = dict.fromkeys(("data/metrics/train.tsv", "data/report"), digest)
        outside = State("rev", "branch", "evil", {}, {}, {}, outs)
        files = RunFiles(made.folder)
        assert not files.files(outside, Path("data/report"))
        assert not any(files.file(outside, Path(path)).exists() for path in outs)


def test_of_a_curve_that_ends_in_half_a_row_the_others_are_shown(client, repository):
    file = repository.folder / "data/metrics/train.tsv"
    whole = client.get("/runs/workspace/curve.json").json()
    file.write_text(f"{file.read_text()}9\t1.2\t1e")
    assert client.get("/runs/workspace/curve.json").json() == whole != {}
