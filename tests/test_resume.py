"""The train_model stage as DVC runs it, interrupted in every way."""

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from glob import glob  # which, unlike that of a Path, allows that a folder goes meanwhile

import pytest

from chatmill.training.checkpoint import Checkpoint
from support.paths import SOURCE
from support.training_runs import run_training as train
from support.training_runs import training_command, write_tokens

KILLS = int(os.environ.get("CHATMILL_KILLS", "20"))
KINDS = ("new", "fine-tuned", "lora", "new", "fine-tuned", "lora", "compiled")
LENGTH = {"steps": 150, "checkpoint_every": 3}
EVERY_RUN = re.compile(
    r" is answered | starts from counted bigrams: | epochs of |: warning: .* epochs |: [\d,]+ of |: trained for "
)
RESUMES = re.compile(r"resumes after step [\d,]+ of [\d,]+\n")
RESULTS = ("model/model.safetensors", "model/config.json", "train.tsv")


class Run:
    """A folder in which the stage runs."""

    def __init__(self, folder, tokens, **changes):
        self.folder, self.command = folder, [sys.executable, *training_command(tokens, folder, **LENGTH | changes)]

    def start(self, limits=()):
        environment = os.environ | {"DVC_ROOT": str(self.folder), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            self.command,
            cwd=self.folder,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: [resource.setrlimit(kind, (size, size)) for kind, size in limits],
        )

    def finish(self, limits=()):
        """The stage's exit code, and its log without what every run logs and the name of the stage."""
        process = self.start(limits)
        _, output = process.communicate(timeout=300)
        lines = [line for line in output.splitlines(keepends=True) if not EVERY_RUN.search(line)]
        return process.returncode, "".join(lines).replace("train_model: ", "")

    def timed(self):
        """Finish the stage, record the seconds that it took, and return self."""
        start = time.monotonic()
        assert self.finish() == (0, "")
        self.seconds = time.monotonic() - start
        return self

    def wait_for_a_state(self, process):
        while not self.states() and process.poll() is None:
            time.sleep(0.01)
        assert process.poll() is None, process.stderr.read()

    def states(self):
        return sorted(self.folder.glob(".cache/resume/*/*.pt"))

    def checkpoint(self, monkeypatch):
        monkeypatch.setenv("DVC_ROOT", str(self.folder))
        return Checkpoint(self.states()[0].parent.name)

    def results(self):
        return [(self.folder / name).read_bytes() for name in RESULTS]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(scope="module")
def whole(tokens, tmp_path_factory):
    """A run that was not interrupted."""
    return Run(tmp_path_factory.mktemp("whole"), tokens).timed()


@pytest.fixture(scope="module")
def uninterrupted(tokens, tmp_path_factory):
    """Gives the run of each kind that was not interrupted."""

    @cache
    def run(kind):
        folder = tmp_path_factory.mktemp(kind)
        if kind in ("fine-tuned", "lora"):
            train(tokens, folder / "earlier", depth=2)
        changes = changes_of(kind, folder)
        if "compile" in changes:  # the code is kept, so that later runs take less time
            Run(folder / "first", tokens, **changes).timed()
        return Run(folder / "run", tokens, **changes).timed()

    return run


def changes_of(kind, folder):
    earlier = {"initial": str(folder / "earlier/model")}
    return {"new": {}, "compiled": {"compile": True}, "fine-tuned": earlier, "lora": earlier | {"lora_rank": 4}}[kind]


def is_killed(run, seconds, *, writing):
    """Kill a run after some seconds, or while it then writes its next state; whether it had not ended before."""
    process = run.start()
    time.sleep(seconds)
    while writing and process.poll() is None and not glob(f"{run.folder}/.cache/resume/*/part"):
        pass
    process.kill()
    process.communicate()
    return process.returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize("number", range(max(KILLS, len(KINDS))))
def test_a_kill_at_any_moment_changes_no_byte_and_leaves_nothing(tokens, uninterrupted, tmp_path, number):
    """In one of the 17 epochs, before them, or after them; every second one while a state is written."""
    randomly, kind = random.Random(number), KINDS[number % len(KINDS)]
    whole = uninterrupted(kind)
    run = Run(tmp_path / "run", tokens, **changes_of(kind, whole.folder.parent))
    while not is_killed(run, randomly.uniform(0.2, 0.9) * whole.seconds, writing=number % 2):
        assert run.results() == whole.results()
    code, output = run.finish()
    assert code == 0 and (output == "" or RESUMES.fullmatch(output))  # it may have been killed before a state
    assert run.results() == whole.results()
    assert sorted(os.listdir(run.folder)) == [".cache", "model", "params.yaml", "train.tsv"]
    assert set(os.listdir(run.folder / ".cache")) == {"locks"}


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_asked_to_end_it_saves_and_says_so(tokens, whole, tmp_path, monkeypatch, processes):
    run = Run(tmp_path, tokens, processes=processes)
    process = run.start()
    run.wait_for_a_state(process)
    process.send_signal(signal.SIGTERM)
    _, output = process.communicate()
    done = run.checkpoint(monkeypatch).load()["trainer"]["done"]
    place = f"train_model: stopped by SIGTERM at step {done} of 150"
    saved = f"{place}: the state is saved: run the same command to resume\n"
    assert process.returncode == 143 and output.endswith(saved)
    assert run.finish() == (0, f"resumes after step {done} of 150\n")
    assert processes > 1 or run.results() == whole.results()


@pytest.mark.slow
def test_a_damaged_state_costs_steps_and_no_byte(tokens, whole, tmp_path):
    run = Run(tmp_path, tokens)
    process = run.start()
    run.wait_for_a_state(process)
    process.kill()
    process.wait()
    *others, last = sorted(run.states(), key=lambda file: int(file.name.split("-")[0]))
    last.write_bytes(last.read_bytes()[:-100])
    code, output = run.finish()
    damaged, rest = output.split("\n", 1)
    assert code == 0 and damaged.startswith(f"{last} is damaged: ")
    assert RESUMES.fullmatch(rest) if others else rest == ""
    assert run.results() == whole.results()


@pytest.mark.slow
def test_after_an_edit_of_the_optimizer_a_killed_run_begins_anew(tokens, whole, tmp_path):
    shutil.copytree(SOURCE, tmp_path / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    run, edited = (Run(tmp_path / name, tokens) for name in ("killed", "edited"))
    run.command[1] = edited.command[1] = str(tmp_path / "stages/train_model.py")
    process = run.start()
    run.wait_for_a_state(process)
    process.kill()
    process.wait()
    (folder,) = {file.parent for file in run.states()}
    file = tmp_path / "stages/chatmill/training/optimizer.py"
    file.write_text(file.read_text().replace("_MOMENTUM = 0.85", "_MOMENTUM = 0.5"))
    reason = "the code changed after it was killed: training starts from the beginning"
    assert run.finish() == (0, f"{folder} is not resumed, since {reason}\n")
    assert edited.finish() == (0, "") and run.results() == edited.results() != whole.results()


@pytest.mark.slow
def test_used_up_memory_is_one_sentence(tokens, tmp_path):
    run = Run(tmp_path, tokens, depth=8, steps=2)
    output = "out of memory: lower train_model.depth, context or batch_size\n"
    assert run.finish([(resource.RLIMIT_AS, 1 << 30)]) == (1, output)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"depth": 300},
            r"train_model.depth = 300 needs about 38,.* of memory, and .*: depth .* is the largest that fits",
        ),
        ({"width": 64, "heads": 5}, "width = 64 and heads = 5: expected an even number of channels for each head"),
        ({"width": 66, "heads": 2}, "width = 66 and heads = 2: expected an even number of channels for each head"),
        ({"learning_rate": 1e30}, r"^step 3: the loss is nan: lower train_model.learning_rate$"),
    ],
)
def test_what_cannot_be_trained_is_refused(tokens, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        train(tokens, tmp_path, **changes)


def test_tokens_that_were_cut_are_refused(tokens, tmp_path):
    (tmp_path / "tokenizer").symlink_to(tokens / "tokenizer")
    shutil.copytree(tokens / "tokens", tmp_path / "tokens")
    ids = tmp_path / "tokens/train_ids.npy"
    os.truncate(ids, ids.stat().st_size - 100)
    with pytest.raises(ValueError, match=rf"^{ids} is damaged or was edited: recreate the folder"):
        train(tmp_path, tmp_path)
