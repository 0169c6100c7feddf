import pytest
import yaml

from chatmill.app.cli import main
from chatmill.app.runs import add_seeds
from support.run_repository import PARAMS, RunRepository


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Runs of two depths: of depth 5 the seeds 1 (twice) and 2, and one without a model; of depth 4 seed 1."""
    made = RunRepository(tmp_path_factory.mktemp("seeds"))
    for name, depth, seed in (("a1", 5, 1), ("a2", 5, 2), ("b1", 4, 1), ("same", 5, 1), ("gone", 5, 3)):
        training = PARAMS["train_model"] | {"depth": depth, "seed": seed}
        made.write("params.yaml", yaml.safe_dump(PARAMS | {"train_model": training}))
        if name == "gone":
            made.write(
                "dvc.lock", (made.folder / "dvc.lock").read_text().replace("path: data/model\n", "path: data/other\n")
            )
        made.experiment(name)
    return made


def test_a_side_has_one_run_of_each_other_seed(repository):
    assert add_seeds([["a1"], ["b1"]], repository.folder) == [["a1", "a2"], ["b1"]]
    (side, _) = add_seeds([["a2"], ["b1"]], repository.folder)
    assert side[0] == "a2" and side[1] in ("a1", "same") and len(side) == 2


def test_a_commit_is_the_run_that_it_is(repository):
    commit = repository.git("rev-parse", "main")
    for name in ("main", "HEAD", commit, commit[:8]):
        assert add_seeds([[name], ["b1"]], repository.folder) == [[name], ["b1"]]


@pytest.mark.parametrize(
    "name, message", [("a2", "by their seed alone"), ("data/model", "an experiment or branch"), ("-x", "an experiment")]
)
def test_what_has_no_other_seeds_is_told(repository, name, message):
    with pytest.raises(ValueError, match=message):
        add_seeds([["a1"], [name]], repository.folder)


def test_the_command_tells_which_runs_are_a_side(repository, monkeypatch, capsys):
    monkeypatch.chdir(repository.folder)
    assert main(["compare", "a1", "b1", "--seeds", "--data", "none.jsonl"]) == 1
    assert capsys.readouterr().err.splitlines()[:2] == ["a1: 2 seeds: a1, a2", "b1: 1 seed: b1"]
