import os
import subprocess
import sys

import numpy as np
import pytest
from safetensors.torch import load_file

from chatmill.encoded.token_files import read_split
from chatmill.training.packing import PackedDataset, truncate_conversations
from support.tiny import VOCABULARY
from support.training_runs import free_port, kill_when_saved, read_curve, run_training, training_command, write_tokens

STEPS = 20  # with equal losses; rounding errors grow with every step
CLOSE = 1.5e-5  # 1e-5, and half of the last digit that is written


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(scope="module")
def alone(tokens, tmp_path_factory):
    return run_training(tokens, tmp_path_factory.mktemp("alone"), steps=STEPS)


def losses(folder):
    return [float(line["loss"]) for line in read_curve(folder)]


def start(command, folder):
    """A command in a folder with a checkpoint of its own."""
    environment = os.environ | {"DVC_ROOT": str(folder / "top"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_every_loss_is_that_of_one_process(tokens, alone, tmp_path, processes):
    run_training(tokens, tmp_path, steps=STEPS, processes=processes)
    assert losses(tmp_path) == pytest.approx(losses(alone), abs=CLOSE)
    last, last_alone = (list(map(float, read_curve(folder)[-1].values())) for folder in (tmp_path, alone))
    assert last == pytest.approx(last_alone, abs=1e-4) and len(last) == 8  # with two sources


@pytest.mark.slow
def test_sharded_losses_and_weights_are_those_of_one_process(tokens, alone, tmp_path):
    run_training(tokens, tmp_path, steps=STEPS, processes=2, shard=True)
    assert losses(tmp_path) == pytest.approx(losses(alone), abs=1e-4)
    norms = [[float(line["gradient_norm"]) for line in read_curve(folder)] for folder in (tmp_path, alone)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)
    ours, theirs = (load_file(folder / "model/model.safetensors") for folder in (tmp_path, alone))
    assert {name: weight.shape for name, weight in ours.items()} == {name: w.shape for name, w in theirs.items()}


@pytest.mark.slow
def test_an_embedding_of_bytes_loses_as_much_in_one_process_as_spread_over_two(tokens, tmp_path):
    part = {"embedding": "bytes", "tie_embeddings": False}
    one, two = (
        losses(
            run_training(tokens, tmp_path / str(processes), steps=4, processes=processes, shard=processes > 1, **part)
        )
        for processes in (1, 2)
    )
    np.testing.assert_allclose(two, one, rtol=1e-4)


@pytest.mark.slow
def test_one_line_tells_a_mistake_of_a_stage_in_many_processes(tokens, tmp_path):
    process = start([sys.executable, *training_command(tokens, tmp_path, processes=2, learning_rate=1e30)], tmp_path)
    errors = process.communicate()[1].decode()
    assert process.returncode == 1
    assert errors.count("the loss is nan: lower train_model.learning_rate") == 1 and "Traceback" not in errors


@pytest.mark.slow
def test_processes_end_with_their_parent(tokens, tmp_path):
    process = start(
        [sys.executable, *training_command(tokens, tmp_path, steps=10**6, checkpoint_every=2, processes=2)], tmp_path
    )
    kill_when_saved(process, tmp_path / "top")  # returns when its output, which all processes have, is closed
    assert not (tmp_path / "model").exists()


def test_the_rows_of_a_step_are_dealt_out(tokens):
    split = read_split(tokens / "tokens", "train")
    dataset = PackedDataset(
        split, truncate_conversations(split, 64, "chatml", VOCABULARY.special), 64, VOCABULARY.special
    )
    rows = list(dataset.epoch(0, 0))[:5]
    whole, parts = dataset.batches(rows, 1), [dataset.batches(rows, 1, part, 2) for part in (0, 1)]
    assert [len(part) for part in parts] == [3, 3]
    dealt = [batch for pair in zip(*parts, strict=True) for batch in pair]
    assert all(np.array_equal(a.ids, b.ids) for a, b in zip(dealt, whole, strict=False))
    assert not dealt[-1].loss.any()


TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


@pytest.mark.slow
def test_torchrun_starts_the_processes(tokens, alone, tmp_path):
    command = training_command(tokens, tmp_path, steps=STEPS)
    assert start([*TORCHRUN, "--standalone", "--nproc-per-node=2", *command], tmp_path).wait() == 0
    assert losses(tmp_path) == pytest.approx(losses(alone), abs=CLOSE)


@pytest.mark.slow
def test_two_machines_train_together(tokens, alone, tmp_path):
    meeting = ("--nnodes=2", "--nproc-per-node=1", f"--rdzv-endpoint=127.0.0.1:{free_port()}")
    folders = [tmp_path / name for name in "ab"]
    commands = [training_command(tokens, folder, steps=STEPS) for folder in folders]
    machines = [
        start([*TORCHRUN, *meeting, f"--node-rank={rank}", *command], folder)
        for rank, (command, folder) in enumerate(zip(commands, folders, strict=True))
    ]
    assert [machine.wait() for machine in machines] == [0, 0]
    assert losses(folders[0]) == pytest.approx(losses(alone), abs=CLOSE) and not (folders[1] / "model").exists()
