"""Copies of the project that run in seconds."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from chatmill.pipeline.params_file import read_params
from support.paths import ROOT, SOURCE

# parameter values with which the complete pipeline takes seconds
TINY = {"prepare.mill.limit": 400, "prepare.skills.limit": 400, "mix.test_share": 0.1}
TINY |= {"train_tokenizer.vocab_size": 576, "train_model.depth": 1, "train_model.width": None}
TINY |= {"train_model.context": 256, "train_model.steps": 4, "train_model.batch_size": 1024}
TINY |= {"train_model.compile": False, "train_soft_tokenizer.features": 64, "train_soft_tokenizer.steps": 4}
TINY |= {"train_soft_tokenizer.conversations": 10, "evaluate.max_tokens": 4, "evaluate.conversations": 60}
TINY |= {"evaluate.skill_prompts": 1, "evaluate.talk_prompts": 2}
TINY |= {"benchmark.prompt_tokens": [16], "benchmark.new_tokens": 2, "benchmark.repeats": 1}
PLUMBING = {  # cannot change an output: edits of it rerun nothing
    "chatmill/pipeline/progress.py",  # progress bars and log lines
    "chatmill/pipeline/stage.py",  # starts a stage, prints its error
    "chatmill/pipeline/outputs.py",  # locks, and renames that complete an output
    "chatmill/pipeline/processes.py",  # ends processes with their parent; which errors are one line
    "chatmill/pipeline/params_file.py",  # refuses parameters; their values are dependencies themselves
    "chatmill/pipeline/signatures.py",  # the command line, and what a parameter accepts in words
    "chatmill/pipeline/schema.py",  # writes params.schema.json
    "chatmill/workers.py",  # in which process something is computed, not what
    "chatmill/run_display.py",  # what training shows, how much memory it needs
}


class Project:
    """A copy of the project in another folder, with the same dvc.yaml, scripts and library."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def copy(self, folder):
        """A copy in a new folder: its results, and what its cache holds, are of no other test."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Project(folder)

    def edit(self, values):
        """Set parameters by dotted key."""
        file = self.folder / "params.yaml"
        params = read_params(file)
        for key, value in values.items():
            *path, last = key.split(".")
            section = params
            for name in path:
                section = section.setdefault(name, {})
            section[last] = value
        file.write_text(yaml.safe_dump(params, sort_keys=False))

    def dvc(self, *arguments, **environment):
        """The output of a dvc command. Raises AssertionError where it fails."""
        result = subprocess.run(
            [sys.executable, "-m", "dvc", *arguments],
            cwd=self.folder,
            env=os.environ | {"OMP_NUM_THREADS": "2", "CI": "true"} | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise AssertionError(f"dvc {' '.join(arguments)} failed:\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}")
        return result.stdout

    def repro(self, *arguments):
        """The stages that `dvc repro` runs, or would run."""
        lines = self.dvc("repro", *arguments).splitlines()
        return [line.split("'")[1] for line in lines if line.startswith("Running stage")]


def copy_project(folder, *, git):
    for name in ("dvc.yaml", "params.yaml", ".dvcignore", ".gitignore"):
        shutil.copy(ROOT / name, folder / name)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(SOURCE, folder / "stages", ignore=ignored)
    shutil.copytree(ROOT / "data" / "raw", folder / "data" / "raw")
    project = Project(folder)
    if git:
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    project.dvc("init", *([] if git else ["--no-scm"]))
    shutil.copy(ROOT / ".dvc" / "config", folder / ".dvc" / "config")
    if not git:
        (folder / ".dvc" / "config").open("a").write("    no_scm = true\n")
    project.edit(TINY)
    return project
