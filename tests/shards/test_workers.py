"""The processes that work on shards may be any number anywhere, and may be killed."""

import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from chatmill.shards.workers import available_workers, worker_pool
from support import slurm
from support.paths import ROOT
from support.shard_functions import array, failed_by_lock, failed_by_pair, killed, killed_once, refused, squared
from support.training_runs import free_port

PACKAGES = {"ray": "ray", "slurm": "submitit"}
REMEDIES = {"slurm": r"Slurm's state is FAILED \(.*[Kk]illed.*\): set CHATMILL_SLURM, as mem=8G,time=04:00:00"}


@pytest.fixture(autouse=True, params=["local", *(pytest.param(name, marks=pytest.mark.slow) for name in PACKAGES)])
def engine(request, monkeypatch, tmp_path_factory):
    """Each engine: Ray with the extra `scale`, Slurm by a stand-in."""
    if request.param in PACKAGES:
        pytest.importorskip(PACKAGES[request.param])
    monkeypatch.setenv("CHATMILL_ENGINE", request.param)
    monkeypatch.setenv("CHATMILL_WORKERS", "8")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    if request.param == "slurm":
        slurm.start(tmp_path_factory.mktemp("slurm"), monkeypatch)
    yield request.param
    if request.param == "slurm":
        slurm.final_states()


@pytest.mark.parametrize("count", [1, 2, 8])
def test_results_come_in_order_from_any_number_of_processes(count):
    with worker_pool(count) as ordered_map:
        assert list(ordered_map(squared, range(50))) == [i * i for i in range(50)]
        assert list(ordered_map(squared, iter(""))) == []
        assert next(iter(ordered_map(squared, iter(range(3, 9))))) == 9


@pytest.mark.parametrize("kills", [7, pytest.param(50, marks=pytest.mark.slow)])
def test_of_a_process_that_is_killed_only_its_shard_is_done_again(tmp_path, kills):
    numbers = range(3 * kills - 2)  # every third
    with worker_pool(2) as ordered_map:
        assert list(ordered_map(partial(killed_once, folder=tmp_path), numbers)) == [i * i for i in numbers]
    assert sorted(map(int, (tmp_path / "calls").read_text().split())) == list(numbers)
    assert sum(file.name != "calls" for file in tmp_path.iterdir()) == kills


def test_a_shard_on_which_every_process_is_killed_is_named(engine):
    remedy = REMEDIES.get(engine, "set CHATMILL_WORKERS to fewer")
    with (
        worker_pool(2) as ordered_map,
        pytest.raises(ValueError, match=rf"^5: 3 processes .* were killed, as for want of memory: {remedy}$"),
    ):
        list(ordered_map(killed, [5]))


def test_arrays_that_come_back_can_be_changed():
    with worker_pool(2) as ordered_map:
        for number, found in zip((3, 4), ordered_map(array, [3, 4]), strict=True):
            found += 1
            assert found.sum() == number * (number + 1) / 2


def test_an_error_comes_after_the_results_before_it():
    given = []
    with worker_pool(2) as ordered_map, pytest.raises(ValueError, match=r"^1 is no"):
        given.extend(ordered_map(refused, [1, 2]))
    assert given == []


@pytest.mark.parametrize(
    ("function", "message"),
    [(failed_by_lock, "LockedError: 7 is locked"), (failed_by_pair, "PairError: 7 is locked")],
)
def test_an_error_that_cannot_be_sent_comes_by_its_name_and_text(function, message):
    with worker_pool(2) as ordered_map:
        with pytest.raises(RuntimeError) as caught:
            list(ordered_map(function, [7]))
        assert str(caught.value) == message
        assert any(f"in {function.__name__}" in note for note in caught.value.__notes__)
        assert list(ordered_map(squared, [3])) == [9]


def test_what_a_map_has_left_is_not_taken_for_the_results_of_the_next():
    with worker_pool(2) as ordered_map:
        assert next(iter(ordered_map(squared, range(3, 50)))) == 9
        with pytest.raises(ValueError, match=r"is no number"):
            list(ordered_map(refused, range(50)))
        assert list(ordered_map(squared, range(10))) == [i * i for i in range(10)]


def test_the_number_of_processes_is_set_by_the_environment(monkeypatch):
    monkeypatch.delenv("CHATMILL_WORKERS", raising=False)
    assert available_workers() >= 1
    monkeypatch.setenv("CHATMILL_WORKERS", "7")
    assert available_workers() == 7
    for wrong in ("0", "-1", "two", "1.5"):
        monkeypatch.setenv("CHATMILL_WORKERS", wrong)
        with pytest.raises(ValueError, match=f"expected a number of processes from 1, got '{wrong}'"):
            available_workers()


def test_an_engine_that_is_unknown_or_not_installed_is_named(monkeypatch, engine):
    monkeypatch.setenv("CHATMILL_ENGINE", "spark")
    with pytest.raises(ValueError, match=r"^CHATMILL_ENGINE: expected one of local, ray, slurm, got"), worker_pool(2):
        pass
    for name, package in PACKAGES.items():
        monkeypatch.setenv("CHATMILL_ENGINE", name)
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ValueError, match=rf"is {name}, .*: pip install -e '\.\[scale\]'"), worker_pool(2):
            pass


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_named(monkeypatch, engine):
    if engine != "ray":
        pytest.skip("it has no address")
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port()}")
    with pytest.raises(ValueError, match=r"no cluster answers at .*: connection refused$"), worker_pool(2):
        pass


@pytest.fixture
def cluster(monkeypatch, engine):
    """The address of a cluster on this machine that Ray finds by itself."""
    if engine != "ray":
        pytest.skip("it has no cluster")
    from ray.cluster_utils import Cluster

    with TemporaryDirectory(prefix="ray") as folder:  # a short path, since sockets lie below it
        monkeypatch.setenv("RAY_TMPDIR", folder)
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        Path(folder, "ray", "ray_current_cluster").write_text(started.address)  # as `ray start` does
        yield started.address
        started.shutdown()


@pytest.mark.slow
def test_a_shard_on_which_the_processes_of_a_cluster_are_killed_is_named_with_what_helps_there(monkeypatch, cluster):
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    with (
        worker_pool(2) as ordered_map,
        pytest.raises(ValueError, match=r"^5: 3 processes .*: give the cluster's machines fewer processors"),
    ):
        list(ordered_map(killed, [5]))


@pytest.mark.slow
def test_without_an_address_the_processes_are_not_those_of_a_cluster_that_happens_to_be_here(cluster):
    with worker_pool(2) as ordered_map:
        assert list(ordered_map(squared, [3])) == [9]
