"""The job of stages/cluster, run by a stand-in for Slurm: two agents on this machine, each as a node."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from support.paths import SOURCE
from support.training_runs import SETTINGS, free_port, read_curve, write_tokens

STAND_INS = {
    "scontrol": 'case "$1" in show) echo 127.0.0.1 ;; requeue) echo "$2" >> requeued ;; esac',
    "srun": """
for SLURM_NODEID in 0 1; do
  export SLURM_NODEID
  "$@" &
done
trap 'kill -TERM $(jobs -p)' TERM # as srun sends it to its tasks
code=0
for task in $(jobs -p); do
  while kill -0 "$task" 2>/dev/null; do wait "$task"; last=$?; done
  [ "${last:-0}" -eq 0 ] || code=$last
done
exit "$code"
""",
}

pytestmark = pytest.mark.slow


@pytest.fixture
def clone(tmp_path):
    """What all nodes see: code, tokens and parameters, and the commands of Slurm."""
    (tmp_path / "data/raw/external/initial").mkdir(parents=True)
    (tmp_path / "data/metrics").mkdir()
    write_tokens(tmp_path / "data")
    (tmp_path / "stages").symlink_to(SOURCE)
    (tmp_path / "bin").mkdir()
    for name, code in STAND_INS.items():
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{code}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def submit(clone, variables=None, **length):
    """The job, started as sbatch starts it with these variables, for a run of this length."""
    (clone / "params.yaml").write_text(yaml.safe_dump({"train_model": SETTINGS | length}))
    path = f"{clone}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NNODES": "2", "PORT": str(free_port())}
    return subprocess.Popen(
        ["bash", SOURCE / "cluster/train.sbatch"],
        cwd=clone,
        env=os.environ | {"PATH": path, "DVC_ROOT": str(clone), "OMP_NUM_THREADS": "1"} | job | (variables or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_two_nodes_train_one_model(clone):
    job = submit(clone, steps=20)
    output, _ = job.communicate(timeout=200)
    assert job.returncode == 0, output
    assert (clone / "data/model/model.safetensors").exists() and not (clone / "requeued").exists()
    assert int(read_curve(clone / "data/metrics")[-1]["step"]) == 20


def test_a_job_that_is_stopped_is_queued_again_and_goes_on(clone):
    job = submit(clone, steps=500, checkpoint_every=5)
    while not list(clone.glob(".cache/resume/*/*.safetensors")) and job.poll() is None:
        time.sleep(0.1)
    job.terminate()  # as before the time limit
    output, _ = job.communicate(timeout=200)
    assert job.returncode != 0 and (clone / "requeued").read_text() == "7\n", output
    (clone / "requeued").unlink()
    job = submit(clone, steps=500, checkpoint_every=5)
    output, _ = job.communicate(timeout=400)
    assert job.returncode == 0 and "resumes after step" in output, output
    assert not (clone / "requeued").exists()


def test_a_job_that_fails_is_not_queued_again(clone):
    (clone / ".cache/resume/earlier").mkdir(parents=True)
    (clone / ".cache/resume/earlier/1-0.safetensors").touch()
    job = submit(clone, steps=-1)
    output, _ = job.communicate(timeout=200)
    assert job.returncode != 0 and "train_model.steps" in output, output
    assert not (clone / "requeued").exists()


def test_a_job_whose_states_were_lost_goes_on_from_the_storage(clone):
    (clone / "storage").mkdir()
    length = {"steps": 500, "checkpoint_every": 5, "variables": {"CHATMILL_CHECKPOINTS": f"file://{clone}/storage"}}
    job = submit(clone, **length)
    while not list(clone.glob("storage/*/*.complete")) and job.poll() is None:
        time.sleep(0.1)
    job.terminate()
    output, _ = job.communicate(timeout=200)
    shutil.rmtree(clone / ".cache")
    job = submit(clone, **length)
    output, _ = job.communicate(timeout=400)
    assert job.returncode == 0 and output.count("resumes after step") == 1, output
    assert not list((clone / "storage").iterdir())


def test_rented_machines_have_the_storage_and_train_as_slurms_nodes_do():
    task = yaml.safe_load((SOURCE / "cluster/sky.yaml").read_text())
    assert task["envs"]["CHATMILL_CHECKPOINTS"] is None and "file_mounts" not in task  # who launches it must name one
    commands = [
        " ".join(text.replace("\\\n", " ").split())
        for text in (task["run"], (SOURCE / "cluster/train.sbatch").read_text())
    ]
    stages = [command[command.index("stages/train_model.py") :].partition("train.tsv")[0] for command in commands]
    assert stages[0] == stages[1]
