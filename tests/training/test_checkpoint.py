import os
import resource
import signal
import sys
import time
from types import ModuleType

import pytest
import torch

from chatmill.training.checkpoint import SIGTERM_EXIT_CODE, Checkpoint, catch_sigterm, changed_parts, run_fingerprint

WEEK = 7 * 24 * 3600
TYPES = "bool uint8 int8 int16 int32 int64 bfloat16 float16 float32 float64"


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    return Checkpoint("run")


def states(checkpoint):
    return sorted(checkpoint.folder.iterdir())


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_two_states_are_kept_under_their_checksums_and_the_last_comes_back(checkpoint):
    assert checkpoint.load() is None
    for number in range(11):
        assert checkpoint.save({"done": number, "weights": torch.full((2,), float(number))})
    state = Checkpoint("run").load()
    assert state["done"] == 10 and state["weights"].tolist() == [10.0, 10.0]
    assert [file.name.split("-")[0] for file in states(checkpoint)] == ["10", "11"]
    assert os.popen(f"sha256sum {states(checkpoint)[1]}").read()[:64] == states(checkpoint)[1].stem[3:]


@pytest.mark.parametrize("dimensions", range(8))
def test_tensors_of_every_type_come_back_aligned(checkpoint, dimensions):
    saved = [torch.arange(3).to(getattr(torch, name)).view(3, *[1] * dimensions) for name in TYPES.split()]
    assert checkpoint.save({"b": saved[1:], "a": saved[0]})
    loaded = checkpoint.load()
    for before, after in zip(saved, [loaded["a"], *loaded["b"]], strict=True):
        assert after.dtype == before.dtype and torch.equal(after, before)
        assert after.data_ptr() % after.element_size() == 0


@pytest.mark.parametrize("damage", [flip, lambda file: os.truncate(file, 100), lambda file: os.truncate(file, 0)])
def test_a_damaged_state_is_told_and_the_one_before_it_taken(checkpoint, capsys, damage):
    checkpoint.save({"done": 1})
    checkpoint.save({"done": 2})
    last = states(checkpoint)[1]
    damage(last)
    assert checkpoint.load() == {"done": 1}
    problem = f"{last} is damaged: the run resumes from the state before it, or from the start"
    assert capsys.readouterr().err == f"train_model: {problem}\n"


def test_the_states_of_a_run_that_is_done_go_and_those_that_a_week_made_old(checkpoint):
    for name, age in (("run", 0), ("young", WEEK - 60), ("old", WEEK + 60)):
        Checkpoint(name).save({})
        os.utime(checkpoint.folder.with_name(name), times=(time.time() - age,) * 2)
    checkpoint.remove()
    assert [one.name for one in checkpoint.folder.parent.iterdir()] == ["young"]


def test_states_are_told_that_follow_from_the_same_parameters_alone(checkpoint, capsys):
    for name in ("a-b-c-d", "x-b-c-d"):
        Checkpoint(name).save({})
    assert Checkpoint("a-b-x-d").load() is None
    told = f"train_model: {checkpoint.folder.with_name('a-b-c-d')} is not resumed, since the code changed after it was"
    assert capsys.readouterr().err == f"{told} killed: training starts from the beginning\n"


def test_no_code_of_a_state_is_run(checkpoint):
    checkpoint.save({"place": checkpoint.folder})  # a class that a safe load rejects
    with pytest.raises(Exception, match="Weights only load failed"):
        checkpoint.load()


def test_a_full_disk_is_told_once_and_the_former_state_stays(checkpoint, capsys):
    checkpoint.save({"done": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        assert [checkpoint.save({"weights": torch.zeros(1_000_000)}) for _ in range(2)] == [False, False]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(states(checkpoint)) == 1 and checkpoint.load() == {"done": 1}
    assert capsys.readouterr().err == (
        f"train_model: {checkpoint.folder}: file too large: "
        "training continues, but a killed run would resume from an older state\n"
    )


def test_a_checkpoint_is_found_by_what_it_follows_from(tmp_path):
    file = tmp_path / "manifest.json"
    file.write_text("1")
    first = run_fingerprint({"steps": 1, "depth": 2}, [file])
    assert (
        first == run_fingerprint({"depth": 2, "steps": 1}, [file]) != run_fingerprint({"steps": 2, "depth": 2}, [file])
    )
    file.write_text("2")
    assert changed_parts(first, run_fingerprint({"steps": 1, "depth": 2}, [file])) == ["data"]


def test_other_code_begins_anew(tmp_path, monkeypatch):
    file, first = tmp_path / "optimizer.py", run_fingerprint({}, [])
    module = ModuleType("chatmill.of_a_test")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "chatmill.of_a_test", module)
    file.write_text("rate = 1")
    second = run_fingerprint({}, [])
    file.write_text("rate = 1  # a comment")
    third = run_fingerprint({}, [])
    assert changed_parts(first, second) == changed_parts(second, third) == ["code"]


def test_sigterm_is_noted_once_and_then_means_what_it_meant():
    former = signal.getsignal(signal.SIGTERM)
    with catch_sigterm() as stop_requested:
        assert not stop_requested.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert stop_requested.is_set() and signal.getsignal(signal.SIGTERM) == former and SIGTERM_EXIT_CODE == 143
    assert signal.getsignal(signal.SIGTERM) == former
