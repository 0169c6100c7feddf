"""Errors of a model have its name once, whatever the name is."""

import shutil
from pathlib import Path

import pytest

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


def test_a_run_is_named_where_its_files_are_read(monkeypatch):
    def fetch(name, outputs, folder):
        return find_or_fetch(str(shutil.copytree("damaged", folder)), outputs, folder)

    monkeypatch.setattr("chatmill.app.named_models.find_or_fetch", fetch)
    assert message_of("HEAD").startswith("HEAD/config.json")
