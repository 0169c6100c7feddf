"""What the README says is done, and what it shows comes out."""

import json
import os
import re
import subprocess
import sys
import tomllib
from functools import reduce
from operator import getitem
from pathlib import Path

import nbformat
import pytest
import yaml
from nbclient import NotebookClient

from chatmill.pipeline.params_file import SCHEMA_FILE, find_errors, read_params
from chatmill.tokenizer import load
from support.paths import ROOT, SOURCE
from support.serving import serving

PAGES = {
    str(file.relative_to(ROOT)): file.read_text(encoding="utf-8")
    for file in (
        ROOT / "README.md",
        ROOT / "data/README.md",
        ROOT / "data/recipes.md",
        *SOURCE.rglob("README.md"),
        *(ROOT / "tests").rglob("README.md"),
    )
    if "vendor" not in file.parts
}
LINES = 180  # of the first page
NOTEBOOK = ROOT / ".github/quickstart.ipynb"


def blocks(language):
    """(page, text of the block) of each block of code in that language."""
    pattern = re.compile(rf"^```{language}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return [(page, block) for page, text in PAGES.items() for block in pattern.findall(text)]


def anchors(page):
    """What a link to a heading of the page may name, as GitHub does."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", PAGES[page], flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    )
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_first_page_is_short():
    assert len(PAGES["README.md"].splitlines()) <= LINES


def test_the_address_to_clone_is_that_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"git clone {project['urls']['Repository']} " in PAGES["README.md"]
    assert f"git clone {project['urls']['Repository']}\\n" in NOTEBOOK.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", PAGES[page]):
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent.joinpath(path).resolve() if path else ROOT / page
        assert file.exists(), target
        assert not anchor or anchor in anchors(str(file.relative_to(ROOT))), target


@pytest.fixture(scope="module")
def own_project(git_project, tmp_path_factory):
    """A project in which the commands of the pages may do what they do; its model has learnt to answer in words."""
    project = git_project.copy(tmp_path_factory.mktemp("readme") / "project")
    project.edit({"train_model.steps": 60})
    project.repro()
    return project


def untracked(folder):
    """The files that `git add .` would add, but for inputs."""
    command = ["git", "ls-files", "--others", "--exclude-standard", ":!data/raw"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    "block",
    [block for _, block in blocks("bash")],
    ids=[f"{page}: {block.splitlines()[0]}" for page, block in blocks("bash")],
)
def test_commands_work(own_project, block):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    before = untracked(own_project.folder)
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=own_project.folder,
        env=os.environ | {"PATH": path, "CI": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.strip() or "chatmill verify" in block  # which is silent where all is in order
    assert untracked(own_project.folder) == before


@pytest.mark.slow
def test_the_notebook_runs_from_its_first_cell_to_a_page(own_project, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": own_project.folder}}).execute()
    printed = {cell.id: "".join(output.text for output in cell.outputs) for cell in notebook.cells if "outputs" in cell}
    assert "Running stage 'train_model'" in printed["train"] and "'evaluate'" not in printed["train"]
    assert len(printed["chat"].splitlines()) >= 6  # three prompts, and an answer to each
    assert "48·times·7" in "".join(printed["show"].split())  # whatever the tokens
    assert (own_project.folder / "chat.html").stat().st_size > 100_000


@pytest.mark.slow
def test_a_tokenizer_type_of_ones_own(own_project):
    code = next(block for _, block in blocks("python") if "Settings" in block)
    section = yaml.safe_load(next(block for _, block in blocks("yaml") if "train_tokenizer:" in block))[
        "train_tokenizer"
    ]
    name = section["type"]
    (own_project.folder / f"stages/chatmill/tokenizer/types/{name}.py").write_text(code)
    own_project.edit({f"train_tokenizer.{key}": value for key, value in section.items()})
    assert "train_tokenizer" in own_project.repro()
    assert own_project.repro() == []
    tokenizer = load(own_project.folder / "data/tokenizer")
    text = "Wo ist der Bahnhof? \U0001f689 <|im_end|>"
    assert (tokenizer.vocabulary.type, tokenizer.decode(tokenizer.encode(text))) == (name, text)


@pytest.mark.slow
def test_the_client_of_the_api_is_answered(own_project):
    code = next(block for _, block in blocks("python") if "openai" in block)
    with serving(folder=own_project.folder) as address:
        names = {}
        exec(code.replace("http://127.0.0.1:8000", address), names)
    assert names["answer"].choices[0].finish_reason in ("stop", "length")


@pytest.mark.parametrize("page", PAGES)
def test_parameters_and_files_that_a_page_names_exist(page):
    params = read_params(ROOT / "params.yaml")
    for key in re.findall(r"-S ([\w.]+)=", PAGES[page]):
        *sections, name = key.split(".")
        assert name in reduce(getitem, sections, params)
    for name in re.findall(r"`((?:stages|tests|data/raw)/[\w/.-]+)`", PAGES[page]):
        assert (ROOT / name).exists() or name.endswith("syllables.py") or name.startswith("data/raw/external/"), name


def test_sections_of_params_that_a_page_shows_are_valid():
    for _, block in blocks("yaml"):
        params = read_params(ROOT / "params.yaml")
        for section, values in yaml.safe_load(block).items():
            if "syllables" not in block:
                params[section] |= values
        assert not list(find_errors(params, json.loads((SOURCE / SCHEMA_FILE).read_text())))


def test_its_pictures_are_sharp_and_small():
    pictures = {f".github/images/{file.name}": file.read_bytes() for file in (ROOT / ".github/images").iterdir()}
    assert set(re.findall(r"!\[.+?\]\((.+?)\)", PAGES["README.md"])) == set(pictures)
    assert sum(map(len, pictures.values())) < 600_000
    for png in pictures.values():
        assert png.startswith(b"\x89PNG") and int.from_bytes(png[16:20]) == 2000  # pixels wide, two for one of CSS
