import os
import subprocess
import sys
from contextlib import chdir
from random import Random

import psutil
import pytest
from dvc.repo import Repo

from chatmill.app.cli import main
from support import corruption
from support.corruption import damage, dead_pid
from support.small_project import in_cache, repro

TEXT = b"some text\n" * 20
DAMAGES = int(os.environ.get("CHATMILL_DAMAGES", "20"))  # planted in the real pipeline, 20 at a time


@pytest.fixture
def repair(capsys):
    def run():
        assert main(["repair"]) == 0
        return capsys.readouterr().out.splitlines()

    return run


def outputs(project):
    return {str(file.relative_to(project)): file.read_bytes() for file in project.glob("data/**/[!.]*.*")}


def test_a_sound_project_is_left_alone(project, repair):
    before = {file: file.stat() for file in project.rglob("*") if file.is_file() and "tmp" not in file.parts}
    assert repair() == ["nothing to repair"]
    assert {file: file.stat() for file in before} == before


def test_a_sound_copy_is_used_before_anything_is_made_again(project, repair):
    before = outputs(project)
    listing = next(project.glob(".dvc/cache/files/md5/*/*.dir"))
    for file in (in_cache(project, b"b\n"), listing):
        damage(file, "extend", Random(1))
    damage(project / "data/copy.txt", "flip", Random(1))
    assert [line.rpartition(": ")[2] for line in repair()[:3]] == [*["restored from the workspace"] * 2, "removed"]
    assert main(["verify"]) == 1  # the removed output
    with Repo(".") as repo:
        repo.checkout()
    assert outputs(project) == before
    assert main(["verify"]) == 0


def test_links_to_objects_that_are_gone_are_removed(project, repair):
    before = outputs(project)
    for name in ("data/copy.txt", "data/fold/b.txt", "large.txt"):
        stored = in_cache(project, (project / name).read_bytes())
        (project / name).unlink()
        (project / name).symlink_to(stored)
    in_cache(project, b"b\n").unlink()
    damage(in_cache(project, b"large\n" * 20), "flip", Random(2))
    assert "data/fold/b.txt: is a link to a missing object: removed" in repair()
    assert not (project / "large.txt").is_symlink()
    (project / "large.txt").write_bytes(b"large\n" * 20)
    repro(project)
    assert outputs(project) == before


@pytest.mark.parametrize("in_git", [True, False])
def test_a_lock_file_of_no_bytes_is_restored_or_made_again(project, repair, in_git):
    before, lock = outputs(project), project / "dvc.lock"
    content = lock.read_bytes()
    if not in_git:
        subprocess.run(["git", "rm", "-q", "--cached", "dvc.lock"], check=True)
        subprocess.run(["git", "commit", "-qm", "No lock"], check=True)
    lock.write_bytes(b"")
    damage(project / "data/copy.txt", "flip", Random(1))
    how = "restored from git's HEAD" if in_git else "removed, since git has no sound one"
    assert f"dvc.lock: is empty: {how}" in repair()
    assert lock.exists() == in_git
    repro(project)
    assert (outputs(project), lock.read_bytes()) == (before, content)


def test_data_that_no_stage_makes_is_never_removed(project, repair):
    (project / "raw.txt").write_text("mine\n")
    (project / "large.txt").write_text("also mine\n")
    (project / "data/fold/notes.txt").write_text("mine as well\n")
    stored = in_cache(project, b"large\n" * 20)
    damage(stored, "flip", Random(1))
    lines = repair()
    texts = [(project / name).read_text() for name in ("raw.txt", "large.txt", "data/fold/notes.txt")]
    assert texts == ["mine\n", "also mine\n", "mine as well\n"]
    assert (project / f".dvc/tmp/corrupt/{stored.parent.name}{stored.name}").stat().st_size == 120
    assert any("`git checkout HEAD -- raw.txt` restores it" in line for line in lines)
    assert "large.txt: is not what its .dvc file says: `dvc add large.txt` records it, no sound copy is here" in lines
    assert any(line.startswith("data/fold/notes.txt: was not written by fold: move it") for line in lines)


def test_folders_of_dead_processes_and_zombies_are_removed_and_those_of_living_ones_not(project, repair):
    with subprocess.Popen([sys.executable, "-c", ""]) as zombie:
        while psutil.Process(zombie.pid).status() != psutil.STATUS_ZOMBIE:
            pass
        folders = [project / f"data/fold/.cache/{pid}" for pid in (dead_pid(), zombie.pid, os.getpid())]
        for folder in folders:
            (folder / "half").mkdir(parents=True)
        resume = project / ".cache/resume/f/1-0.pt"
        resume.parent.mkdir(parents=True)
        resume.touch()
        repair()
    assert [folder.exists() for folder in folders] == [False, False, True]
    assert resume.exists()


def test_what_a_full_disk_left_is_removed(project, repair):
    left, entry = project / "data/.part.tmp", project / ".dvc/cache/runs/aa/bb/cc/half"
    entry.parent.mkdir(parents=True)
    for file in (left, entry):
        file.write_text("number = 1\n")
    (entry.parents[1] / "empty").write_text("cmd: work\nouts: []\n")
    repair()
    assert not left.exists() and not entry.parents[2].exists()


@pytest.mark.parametrize("place", [".dvc/tmp/lock", ".cache/locks/mix-train"])
def test_beside_a_running_command_nothing_is_touched(project, capsys, place):
    damage(project / "data/copy.txt", "flip", Random(1))
    (project / place).parent.mkdir(parents=True, exist_ok=True)
    code = "file = open(sys.argv[1], 'a'); fcntl.flock(file, fcntl.LOCK_EX); print(1, flush=True); input()"
    holder = [sys.executable, "-c", f"import fcntl, sys; {code}", place]
    with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert main(["repair"]) == 1
        process.communicate(b"\n")
    expected = f"chatmill: {project / place}: held by a running command: wait for its end, or end it\n"
    assert capsys.readouterr().err == expected
    assert (project / "data/copy.txt").exists()


def test_a_damaged_object_of_a_remote_is_pushed_again(project, capsys):
    remote = project.with_name("remote")
    with Repo(".") as repo:
        with repo.config.edit() as config:
            config["remote"]["near"] = {"url": str(remote)}
        repo.push(remote="near")
        copy = remote / in_cache(project, b"b\n").relative_to(project / ".dvc/cache")
        damage(copy, "flip", Random(1))
    assert main(["repair"]) == 0
    assert capsys.readouterr().out == "nothing to repair\n"
    assert main(["repair", "--remote", "near"]) == 0
    problem = "is not the content that its name says (data/fold/b.txt)"
    assert f"{copy}: {problem}: removed, since the cache has it" in capsys.readouterr().out
    with Repo(".") as repo:
        repo.push(remote="near")
    assert copy.read_bytes() == b"b\n"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(max(1, DAMAGES // 20)))
def test_all_damage_to_the_pipeline_is_found_and_healed(git_project, tmp_path, seed, capsys, record_property):
    """20 damages at a time; `CHATMILL_DAMAGES=200` plants as many as that."""
    expected = corruption.contents(git_project.folder)
    copy = git_project.copy(tmp_path / "copy")
    with chdir(copy.folder):
        assert "up to date" in copy.dvc("status")
        assert main(["verify"]) == 0
        capsys.readouterr()
        planted = corruption.plant(copy.folder, min(DAMAGES, 20), seed)
        assert main(["verify"]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert corruption.unreported(planted, lines) == []
        lists_are_whole = not any(" list of " in what or what == "dvc.lock" for what, _ in planted)
        assert not lists_are_whole or not [line for line in lines if "no output of this dvc.lock" in line]
        record_property("cases", len(planted))
        assert main(["repair"]) == 0
        copy.repro()
        assert corruption.contents(copy.folder) == expected
        assert main(["verify"]) == 0
