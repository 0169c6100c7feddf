"""Work on shards by jobs of Slurm, for which a stand-in runs them on this machine."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import yaml

import encode
import mix
from chatmill.conversation import Message, Record, render
from chatmill.shards.file_ranges import shards_of
from chatmill.shards.workers import worker_pool
from chatmill.tokenizer.vocabulary.tokenizer_folder import write_folder
from support import slurm
from support.paths import ROOT, SOURCE
from support.shard_functions import killed, killed_once, refused, squared
from support.tiny import VOCABULARY

pytestmark = pytest.mark.slow
pytest.importorskip("submitit")

PARAMS = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
TEXTS = [render([Message.from_text("user", f"{i}?"), Message.from_text("assistant", "7" * i)]) for i in range(150)]
RECORDS = [Record("talk", f"talk/{i % 40}", text) for i, text in enumerate(TEXTS)]
SLEEP = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's job in the background ignores
from chatmill.shards.workers import worker_pool
with worker_pool(2) as ordered_map:
    list(ordered_map(time.sleep, [100, 100, 100]))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder, in which nothing remains."""
    slurm.start(tmp_path, monkeypatch)
    monkeypatch.setenv("CHATMILL_WORKERS", "2")
    yield tmp_path
    slurm.final_states()
    assert not (tmp_path / ".cache/slurm").exists()


def submitted(folder):
    """The options of all arrays and jobs."""
    return (folder / "slurm/options").read_text()


def outputs(folder, monkeypatch):
    """The bytes that encode and mix write."""
    monkeypatch.setattr(encode, "LARGE_BYTES", 1000)
    monkeypatch.setattr("chatmill.encoded.file_encoding.shards_of", partial(shards_of, size=3000))
    monkeypatch.setattr(mix, "CHUNK_BYTES", 3500)
    monkeypatch.setattr(mix, "SHARD_BYTES", 1000)
    own = folder / f"of {len(list(folder.iterdir()))}"
    (own / "prepared").mkdir(parents=True)
    lines = "".join(record.to_json() for record in RECORDS)
    for file in ("train.jsonl", "validation.jsonl", "prepared/talk.jsonl"):
        (own / file).write_text(lines)
    (own / "prepared/talk.rejects.jsonl").touch()
    write_folder(VOCABULARY, own / "tokenizer")
    encode.main(
        *(own / name for name in ("train.jsonl", "validation.jsonl", "tokenizer", "tokens")), **PARAMS["encode"]
    )
    mixed = [own / f"mixed/{name}" for name in ("train.jsonl", "validation.jsonl", "test.jsonl", "manifest", "metrics")]
    mixed[0].parent.mkdir()
    mix.main(own / "prepared", *mixed, prepare={"talk": {"near_duplicates": "within"}}, **PARAMS["mix"])
    return {str(file.relative_to(own)): file.read_bytes() for file in own.rglob("*") if file.is_file()}


def test_outputs_are_those_of_this_machine_with_any_number_of_workers(folder, monkeypatch):
    monkeypatch.setattr("chatmill.shards.slurm_engine._JOBS_FOR_EACH", 2)  # their start takes most of the time
    monkeypatch.setenv("CHATMILL_ENGINE", "local")
    expected = outputs(folder, monkeypatch)
    monkeypatch.setenv("CHATMILL_ENGINE", "slurm")
    for workers in (1, 2, 8):
        monkeypatch.setenv("CHATMILL_WORKERS", str(workers))
        assert outputs(folder, monkeypatch) == expected
        assert f"%{workers} " in submitted(folder)  # at once
    assert set(slurm.final_states().values()) == {"COMPLETED"}


def test_the_options_of_sbatch_come_from_the_environment(folder, monkeypatch):
    monkeypatch.setenv("CHATMILL_SLURM", "partition=cpu,time=02:00:00,mem-per-cpu=4G,exclude=node1,node2")
    with worker_pool(2) as ordered_map:
        assert list(ordered_map(squared, range(100))) == [i * i for i in range(100)]
    for option in ("partition=cpu", "time=02:00:00", "mem-per-cpu=4G", "exclude=node1,node2", "array=0-7%2"):
        assert option in submitted(folder).split()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("cpu", r"^CHATMILL_SLURM: expected options of sbatch, as partition=cpu,time=02:00:00, got 'cpu'$"),
        ("partition=", r"got 'partition='$"),
        ("partition=cpu,array=0-9", r"expected none of array, .*, got 'array=0-9'$"),
        ("partition=closed", r"^sbatch: .*invalid partition specified: closed$"),
    ],
)
def test_options_that_are_wrong_are_named(monkeypatch, options, message):
    monkeypatch.setenv("CHATMILL_SLURM", options)
    with pytest.raises(ValueError, match=message), worker_pool(2) as ordered_map:
        list(ordered_map(squared, range(9)))


def test_a_machine_without_slurm_or_without_its_accounting_is_named(folder, monkeypatch):
    (folder / "slurm/no accounting").touch()
    with pytest.raises(ValueError, match=r"sacct fails: Slurm accounting storage is disabled$"), worker_pool(2):
        pass
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    with pytest.raises(ValueError, match=r"slurm, whose sbatch is not on the PATH: run this on a login node$"):
        worker_pool(2).__enter__()


def test_jobs_whose_results_are_no_longer_wanted_are_cancelled():
    with worker_pool(2) as ordered_map:
        results = ordered_map(time.sleep, [0, 100, 100])
        assert next(iter(results)) is None
        with pytest.raises(ValueError, match=r"^1 is no number"):
            list(ordered_map(refused, range(1, 30)))
    states = slurm.final_states()
    assert [states[f"1_{job}"] for job in range(3)] == ["COMPLETED", "CANCELLED", "CANCELLED"]


def test_a_job_that_somebody_cancels_ends_the_map():
    with worker_pool(2) as ordered_map, pytest.raises(ValueError, match=r"^100: job 1_0 of Slurm was cancelled$"):
        results = ordered_map(time.sleep, [100, 100])
        signal.signal(signal.SIGALRM, lambda *_: subprocess.run(["scancel", "1"]))
        signal.alarm(2)
        list(results)


@pytest.mark.parametrize("state", ["PREEMPTED", "TIMEOUT"])
def test_a_job_that_slurm_ends_is_submitted_again(folder, monkeypatch, state):
    monkeypatch.setenv("STAND_IN_FAILED", state)
    with worker_pool(2) as ordered_map:
        assert list(ordered_map(partial(killed_once, folder=folder), [1, 2, 3])) == [1, 4, 9]
        with pytest.raises(ValueError, match=rf"^5: 3 processes .*: Slurm's state is {state} "):
            list(ordered_map(killed, [5]))
    assert sorted((folder / "calls").read_text().split()) == ["1", "2", "3"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_jobs_of_a_process_that_ends_are_cancelled_by_it_or_by_the_next(folder, number):
    path = os.pathsep.join([str(SOURCE), os.environ["PYTHONPATH"]])
    process = subprocess.Popen([sys.executable, "-c", SLEEP], env=os.environ | {"PYTHONPATH": path})
    while not list((folder / ".cache").glob("slurm/*/*_submitted.pkl")):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(number)
    process.wait(30)
    if number == signal.SIGKILL:
        with worker_pool(2) as ordered_map:
            assert list(ordered_map(squared, [3])) == [9]
    states = slurm.final_states()
    assert [states[f"1_{job}"] for job in range(3)] == ["CANCELLED"] * 3


def test_a_node_without_the_code_is_named(monkeypatch):
    monkeypatch.delenv("PYTHONPATH")  # of the tests' functions
    with (
        worker_pool(2) as ordered_map,
        pytest.raises(ValueError, match=r"^0: job 1_0 of Slurm: ModuleNotFoundError: No module named 'support'$"),
    ):
        list(ordered_map(squared, range(9)))
