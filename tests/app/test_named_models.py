"""Errors of a model have its name once, whatever the name is."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from chatmill.app.cli import main
from chatmill.app.named_models import find_or_fetch, load_named
from support.tiny import write_model


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, with models whose names begin other messages, and one that is damaged."""
    monkeypatch.chdir(tmp_path)
    write_model(Path("unknown"))
    for name in ("device", "damaged"):
        shutil.copytree("unknown", name)
    Path("damaged/config.json").write_text("{")
    Path("text.txt").write_text("Hello.")
    return tmp_path


def message_of(name, **options):
    with pytest.raises(ValueError) as caught:
        load_named(name, "cpu", 1, **options)
    return str(caught.value)


@pytest.mark.parametrize("name", ["damaged", "./damaged/", "../{}/damaged", "{}"])
def test_a_file_of_the_model_is_named_as_the_model_is(folder, name):
    given = str(folder / "damaged") if name == "{}" else name.format(folder.name)
    assert message_of(given).startswith(f"{Path(given)}/config.json")


@pytest.mark.parametrize("command", ["evaluate --data text.txt", "compare --data text.txt", "compare -p Hi"])
def test_commands_name_the_model_of_an_error_that_is_of_no_file(capsys, command):
    name, *options = command.split()
    models = ["device"] if name == "evaluate" else ["device", "device"]
    assert main([name, *models, *options, "--device", "x"]) == 1
    assert capsys.readouterr().err.startswith("chatmill: device: device 'x'")


@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_commands_name_the_model_whose_measures_are_no_numbers(capsys, command):
    weights = {name: np.full_like(value, np.nan) for name, value in load_file("unknown/model.safetensors").items()}
    shutil.copytree("unknown", "text")
    save_file(weights, "text/model.safetensors")
    Path("text/manifest.json").unlink(missing_ok=True)
    models = ["text"] if command == "evaluate" else ["text", "text"]
    assert main([command, *models, "--data", "text.txt"]) == 1
    assert capsys.readouterr().err.startswith("chatmill: text: text.txt: the model's probability of this text is 0")


def test_a_run_is_named_where_its_files_are_read(monkeypatch):
    def fetch(name, outputs, folder):
        return find_or_fetch(str(shutil.copytree("damaged", folder)), outputs, folder)

    monkeypatch.setattr("chatmill.app.named_models.find_or_fetch", fetch)
    assert message_of("HEAD").startswith("HEAD/config.json")
