"""`dvc repro` interrupted in every way and in any place, with stages that run in a second."""

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
from support.project import Project, copy_project

KILLS = int(os.environ.get("CHATMILL_KILLS", "20"))
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def allow_signals():
    """Signals that a parent ignores, as nohup does, are ignored by its children, too."""
    for number in SIGNALS[1:]:
        signal.signal(number, signal.SIG_DFL)


def start(project, stdout=subprocess.DEVNULL, **options):
    command = [sys.executable, "-m", "dvc", "repro", "encode"]
    options |= {"cwd": project.folder, "stdout": stdout, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, preexec_fn=allow_signals, start_new_session=True, **options)


def error_of(project, **options):
    """What `dvc repro` prints where it fails; None where it does not."""
    process = start(project, subprocess.PIPE, **options)
    text, _ = process.communicate(timeout=120)
    return text if process.returncode else None


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
    """The project after a run that nothing disturbed, and its seconds."""
    project = fresh.copy(tmp_path_factory.mktemp("whole") / "project")
    begun = time.monotonic()
    assert start(project).wait() == 0
    return project, time.monotonic() - begun


def assert_same(project, expected):
    """The hashes are those of the other project, and every file has its own."""
    assert hashes(project) == hashes(expected)
    names = outputs(project.folder)
    for path, content in contents(project.folder).items():
        assert hashlib.md5(content).hexdigest() == names[path], path


def send(name, process, number):
    """Send a signal to dvc, to its whole group, or to the stage; False where there is none at this moment."""
    if name != "stage":
        return (os.killpg if name == "group" else os.kill)(process.pid, number) is None
    stages = [child for child in psutil.Process(process.pid).children() if "stages/" in " ".join(child.cmdline())]
    return any(stage.send_signal(number) is None for stage in stages)


def assert_goes_on(project, expected, record_property):
    """A further run ends in the same hashes; where dvc refuses to go on, `chatmill repair` helps."""
    if error_of(project) is not None:
        repair = [sys.executable, "-m", "chatmill.app.cli", "repair"]
        subprocess.run(repair, cwd=project.folder, check=True)
        record_property("repaired", 1)
        assert error_of(project) is None
    assert_same(project, expected)


@pytest.mark.slow
@pytest.mark.parametrize("case", range(KILLS))
def test_after_any_signal_dvc_repro_ends_in_the_same_hashes(fresh, undisturbed, tmp_path, case, record_property):
    expected, seconds = undisturbed
    randomly, number, name = random.Random(case), SIGNALS[case % 4], ("dvc", "group", "stage")[case % 3]
    project = fresh.copy(tmp_path / "project")
    process = start(project)
    time.sleep(randomly.uniform(0.1, 0.95) * seconds)
    while process.poll() is None and not send(name, process, number):
        time.sleep(0.01)
    process.wait(120)
    assert_goes_on(project, expected, record_property)


def mount(folder, *options):
    if subprocess.run(["mount", *options, folder], check=False, capture_output=True).returncode:
        pytest.skip("only root can mount")


@pytest.fixture
def disk(tmp_path):
    """A folder to mount something on."""
    folder = tmp_path / "disk"
    folder.mkdir()
    yield folder
    if folder.is_mount():
        subprocess.run(["umount", "--lazy", folder], check=True)


def size(project):
    """The bytes of a project on a tmpfs, in pages of 4 KiB."""
    return sum(-(-file.stat().st_size // 4096) * 4096 for file in project.folder.rglob("*") if file.is_file())


@pytest.mark.slow
@pytest.mark.parametrize("case", range(KILLS))
def test_a_full_disk_is_told_and_with_room_the_hashes_are_the_same(
    fresh, undisturbed, disk, case, record_property, monkeypatch
):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # a module that is cut is removed by `chatmill repair`
    least, most = size(fresh), size(undisturbed[0])
    mount(disk, "-t", "tmpfs", "-o", f"size={least + round((case + 0.5) / KILLS * (most - least))}", "tmpfs")
    project = fresh.copy(disk / "project")
    error = error_of(project)
    assert error is None or ("ERROR: " in error and "Traceback" not in error)
    mount(disk, "-o", "remount,size=1g")
    assert_goes_on(project, undisturbed[0], record_property)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "umask"), [("two words", 0), ("Mühle 水車", 0o027), ("it's $HOME; 100% [ok]", 0o077)])
def test_a_folder_of_any_name_and_any_umask_give_the_same_hashes(fresh, undisturbed, tmp_path, name, umask):
    project = fresh.copy(tmp_path / name)
    assert error_of(project, umask=umask) is None
    assert_same(project, undisturbed[0])


@pytest.mark.slow
def test_a_git_worktree_gives_the_same_hashes(fresh, undisturbed, tmp_path):
    project = fresh.copy(tmp_path / "project")
    (project.folder / ".dvc/config").write_text("[core]\n    analytics = false\n")
    identity = ["-c", "user.name=chatmill", "-c", "user.email=chatmill@localhost"]
    for command in ("init -q", "add .", "commit -qm Start", "worktree add -q ../worktree"):
        subprocess.run(["git", *identity, *command.split()], cwd=project.folder, check=True)
    worktree = Project(tmp_path / "worktree")
    assert error_of(worktree) is None
    assert_same(worktree, undisturbed[0])


@pytest.mark.slow
def test_sources_may_be_read_only_and_of_a_drive_that_is_dvc_says_so(fresh, undisturbed, disk):
    mount(disk, "-t", "tmpfs", "tmpfs")
    project = fresh.copy(disk / "project")
    raw = project.folder / "data/raw"
    mount(raw, "--bind", "-o", "ro", raw)
    assert error_of(project) is None
    assert_same(project, undisturbed[0])
    project.edit({"prepare.letters.limit": 1})
    mount(disk, "-o", "remount,ro")
    error = error_of(project)
    assert "Read-only file system" in error and "Traceback" not in error
