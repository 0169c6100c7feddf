"""A DVC project of two stages that run in no time, under git."""

import subprocess
from contextlib import chdir
from pathlib import Path

from dvc.repo import Repo

STAGES = """\
stages:
  copy:
    cmd: mkdir -p data && cp raw.txt data/copy.txt
    deps: [raw.txt]
    params: [copy]
    outs: [data/copy.txt]
  fold:
    cmd: mkdir -p data/fold && cp data/copy.txt data/fold/a.txt && echo b > data/fold/b.txt
    deps: [data/copy.txt]
    outs: [data/fold]
    metrics:
      - data/sum.json: {cache: false}
"""


def write_project(folder: Path):
    """Write the project, run it, and commit it."""
    (folder / "raw.txt").write_text("some text\n" * 20)
    (folder / "large.txt").write_text("large\n" * 20)
    (folder / "dvc.yaml").write_text(STAGES.replace("b.txt\n", "b.txt && echo 1 > data/sum.json\n"))
    (folder / "params.yaml").write_text("copy: 1\n")
    git = ("init -q", "config user.name chatmill", "config user.email chatmill@localhost")
    for command in git:
        subprocess.run(["git", *command.split()], cwd=folder, check=True)
    with chdir(folder):
        Repo.init(".").close()
        with Repo(".") as repo:
            repo.add("large.txt")
            repo.reproduce()
    for command in ("add .", "commit -qm Start"):
        subprocess.run(["git", *command.split()], cwd=folder, check=True)
    return folder


def repro(folder: Path):
    """The names of the stages that ran or were fetched from the run cache."""
    with chdir(folder), Repo(".") as repo:
        return [stage.name for stage in repo.reproduce()]


def in_cache(folder: Path, content: bytes):
    """The object of DVC's cache with this content."""
    return next(file for file in folder.glob(".dvc/cache/files/md5/*/*") if file.read_bytes() == content)
