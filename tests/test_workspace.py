"""Using the project changes no file that DVC tracks, as any user."""

import os
import shutil
import subprocess
import sys

import pytest

from chatmill.app.cli import COMMANDS

NOBODY = 65534
IMPORT_ALL = """
import importlib, pkgutil, sys
sys.path.insert(0, "stages")
import chatmill
for module in pkgutil.walk_packages(chatmill.__path__, "chatmill."):
    importlib.import_module(module.name)
"""
RUNS = [
    ["chat", "--model", "data/model", "-p", "Hello", "--max-tokens", "2", "--device", "cpu"],
    ["compare", "data/model", "data/export/onnx", "-p", "Hello", "--max-tokens", "2"],
    ["completion", "bash"],
    ["evaluate", "data/model", "--data", "data/chat/test.jsonl", "--limit", "2"],
    ["export-tokenizer", "data/tokenizer", "data/export/again"],
    ["gguf", "data/model", "data/export/gguf-again", "--quantize", "q4_0"],
    ["pack", "data/export/packed"],
    ["page", "-o", "data/export/chat.html"],
    ["prepare", "--look", "data/raw/visits.jsonl"],
    ["qwen3c", "data/model", "data/export/qwen3c"],
    ["repair"],
    ["show", "Hello", "--tokenizer", "data/tokenizer"],
    ["verify"],
]


def run(project, *command):
    """Run Python in the project; it may write compiled modules."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = variables | {"PYTHONPATH": str(project.folder / "stages")}
    subprocess.run([sys.executable, *command], cwd=project.folder, env=environment, check=True, capture_output=True)


@pytest.fixture
def finished(project):
    """The project with all stages up to date, whatever other tests did in it before."""
    project.repro()
    return project


@pytest.mark.slow
def test_importing_everything_and_running_every_command_leaves_nothing_to_do(finished):
    run(finished, "-c", IMPORT_ALL)
    for command in COMMANDS:
        run(finished, "-m", "chatmill.app.cli", command, "--help")
    for command in RUNS:
        run(finished, "-m", "chatmill.app.cli", *command)
    assert {command for command, *_ in RUNS} | {"serve"} == set(COMMANDS)
    assert list((finished.folder / "stages").rglob("*.pyc"))
    assert "up to date" in finished.dvc("status")


@pytest.mark.slow
@pytest.mark.skipif(bool(os.geteuid()) or not shutil.which("setpriv"), reason="nobody else can be")
def test_as_another_user_there_is_nothing_to_do(finished, tmp_path):
    folder = finished.copy(tmp_path / "project").folder
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    able = "+dac_read_search"  # to read the interpreter, which may lie in a home folder
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    command = [*user, f"--inh-caps={able}", f"--ambient-caps={able}", sys.executable, "-m", "dvc", "status"]
    environment = os.environ | {"HOME": str(folder)}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert "up to date" in result.stdout, result.stderr
