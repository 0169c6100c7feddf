"""Errors of a model have its name once, whatever the name is; and what its files tell of it."""

import json
import shutil
from pathlib import Path

import pytest

from chatmill.app.introduction import introduce
from chatmill.app.named_models import find_or_fetch, load_named
from support.tiny import write_model


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, with a model and one that is damaged."""
    monkeypatch.chdir(tmp_path)
    write_model(Path("unknown"))
    shutil.copytree("unknown", "damaged")
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
    def fetch(name, folder):
        return find_or_fetch(str(shutil.copytree("damaged", folder)), folder)

    monkeypatch.setattr("chatmill.app.named_models.find_or_fetch", fetch)
    assert message_of("HEAD").startswith("HEAD/config.json")


def test_a_model_alone_is_introduced_by_its_shape_and_its_context():
    loaded = load_named("unknown", "cpu", 1)
    shape = "2 layers of 32 channels, 0.1 MB, a context of 640 tokens"
    about = f"{shape}. Trained on data of which its files do not tell."
    found = introduce(Path("unknown"), loaded, loaded.engine.num_bytes)
    assert found == {"about": about, "prompts": []}


def test_a_project_introduces_the_models_of_its_tokenizer_by_complete_answers_that_were_given_once():
    loaded = load_named("unknown", "cpu", 1)
    Path("metrics").mkdir()
    counts = {name: {"messages": {"kept": kept}} for name, kept in (("few", 2), ("many", 3000))}
    Path("metrics/mix.json").write_text(json.dumps({"read": counts}))
    samples = [{"prompt": f"{place}?", "answer": f"{place % 8}.", "stopped": place != 2} for place in range(9)]
    samples += [{"prompt": "Later?", "answer": "B", "stopped": True, "true": "C", "messages_before": 2}]
    Path("samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in samples))
    for fingerprint, prompts in ("another", []), (loaded.tokenizer.fingerprint, ["1?", "4?", "6?"]):
        Path("metrics/evaluate.json").write_text(json.dumps({"tokenizer": {"fingerprint": fingerprint}}))
        found = introduce(Path("unknown"), loaded, loaded.engine.num_bytes)
        assert found["prompts"] == prompts
    assert found["about"].endswith("Trained on many (3,000 messages), few (2 messages).")
