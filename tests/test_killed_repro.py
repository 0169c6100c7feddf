"""`dvc repro` interrupted in every way, with stages that run in a second."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest
import yaml

from chatmill.pipeline.params_file import read_params
from support.corruption import contents, outputs
from support.paths import ROOT
from support.project import copy_project

KILLS = int(os.environ.get("CHATMILL_KILLS", "20"))
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def allow_signals():
    """Signals that a parent ignores, as nohup does, are ignored by its children, too."""
    for number in SIGNALS[1:]:
        signal.signal(number, signal.SIG_DFL)


def start(project):
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "preexec_fn": allow_signals}
    return subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro", "encode"], cwd=project.folder, start_new_session=True, **options
    )


def hashes(project):
    return yaml.safe_load((project.folder / "dvc.lock").read_text())["stages"]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """The first stages of the project on two small sources, before their first run."""
    project = copy_project(tmp_path_factory.mktemp("fresh"), git=False)
    prepare = read_params(ROOT / "params.yaml")["prepare"]
    small = {name: prepare[name] for name in ("letters", "visits")}
    project.edit({"prepare": small, "train_tokenizer.type": "byte"})
    return project


@pytest.fixture(scope="module")
def undisturbed(fresh, tmp_path_factory):
    """The hashes of a run that nothing disturbed, and its seconds."""
    project = fresh.copy(tmp_path_factory.mktemp("whole") / "project")
    begun = time.monotonic()
    assert start(project).wait() == 0
    return hashes(project), time.monotonic() - begun


def send(name, process, number):
    """Send a signal to dvc, to its whole group, or to the stage; False where there is none at this moment."""
    if name != "stage":
        return (os.killpg if name == "group" else os.kill)(process.pid, number) is None
    stages = [child for child in psutil.Process(process.pid).children() if "stages/" in " ".join(child.cmdline())]
    return any(stage.send_signal(number) is None for stage in stages)


@pytest.mark.slow
@pytest.mark.parametrize("case", range(KILLS))
def test_after_any_signal_dvc_repro_ends_in_the_same_hashes(fresh, undisturbed, tmp_path, case, record_property):
    """Where dvc refuses to go on, `chatmill repair` helps."""
    expected, seconds = undisturbed
    randomly, number, name = random.Random(case), SIGNALS[case % 4], ("dvc", "group", "stage")[case % 3]
    project = fresh.copy(tmp_path / "project")
    process = start(project)
    time.sleep(randomly.uniform(0.1, 0.95) * seconds)
    while process.poll() is None and not send(name, process, number):
        time.sleep(0.01)
    process.wait(120)
    again = start(project).wait(120)
    if again:
        repair = [sys.executable, "-m", "chatmill.app.cli", "repair"]
        subprocess.run(repair, cwd=project.folder, check=True)
        record_property("repaired", 1)
        again = start(project).wait(120)
    assert again == 0 and hashes(project) == expected
    for path, content in contents(project.folder).items():
        assert hashlib.md5(content).hexdigest() == outputs(project.folder)[path], path
