"""What the README says is done, and what it shows comes out."""

import os
import re
import subprocess
import sys
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest
import yaml

from chatmill.pipeline.parameters import read_params
from chatmill.tokenizer import load
from support.paths import ROOT
from support.serving import serving

README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("bash"), ids=lambda block: block.splitlines()[0])
def test_commands_work(git_project, block):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=git_project.folder,
        env=os.environ | {"PATH": path, "CI": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.strip()


@pytest.mark.slow
def test_a_tokenizer_type_of_ones_own(git_project):
    code = next(block for block in blocks("python") if "Settings" in block)
    section = yaml.safe_load(next(block for block in blocks("yaml") if "train_tokenizer:" in block))["train_tokenizer"]
    name = section["type"]
    (git_project.folder / f"stages/chatmill/tokenizer/types/{name}.py").write_text(code)
    git_project.edit({f"train_tokenizer.{key}": value for key, value in section.items()})
    assert "train_tokenizer" in git_project.repro()
    assert git_project.repro() == []
    tokenizer = load(git_project.folder / "data/tokenizer")
    text = "Wo ist der Bahnhof? \U0001f689 <|im_end|>"
    assert (tokenizer.vocabulary.type, tokenizer.decode(tokenizer.encode(text))) == (name, text)


@pytest.mark.slow
def test_the_client_of_the_api_is_answered(git_project):
    code = next(block for block in blocks("python") if "openai" in block)
    with serving(folder=git_project.folder) as address:
        names = {}
        exec(code.replace("http://127.0.0.1:8000", address), names)
    assert names["answer"].choices[0].finish_reason in ("stop", "length")


def test_names_every_parameter_that_its_commands_set():
    params = read_params(ROOT / "params.yaml")
    for key in re.findall(r"-S (\S+)=", README):
        *sections, name = key.split(".")
        assert name in reduce(getitem, sections, params)


def test_files_it_names_exist():
    for name in re.findall(r"`((?:stages|tests|data/raw)/[\w/.-]+)`", README):
        assert (ROOT / name).exists() or name.endswith("syllables.py")
