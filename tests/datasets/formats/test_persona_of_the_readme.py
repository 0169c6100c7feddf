import json
import re
from collections import Counter

import pytest

from chatmill.conversation import check_turns, render
from chatmill.datasets.formats.talk import generate
from chatmill.talk.persona import read_persona
from support.paths import ROOT
from support.project import copy_project
from support.talk import write_persona

PERSONA = re.search(r"^```yml\n(.*?)^```$", (ROOT / "data/README.md").read_text(), re.DOTALL | re.MULTILINE)[1]


@pytest.fixture
def file(tmp_path):
    return write_persona(tmp_path, PERSONA)


def test_it_is_as_short_as_a_page():
    assert len(PERSONA.splitlines()) <= 50


def test_it_gives_conversations_in_which_everything_occurs(file):
    items, persona = list(generate(file, limit=200, seed=1)), read_persona(file)
    for item in items:
        check_turns(item.conversation)
    assert Counter(item.group.split("/")[0] for item in items)["train"] == 187
    text = "\n".join(render(item.conversation) for item in items)
    name = "(Ana|Ben|Chris|Dora)"
    for said in ("Welcome!", "on Friday?", "Plum tarts instead of", "with cream", f"Noted, {name}", f"You are {name}"):
        assert re.search(said, text)
    for item in items:
        if item.skill and item.skill["name"] == "talk":
            said = {key: persona.word(key, word) for key, word in item.skill["slots"].items()}
            exchange = persona.exchanges()[item.skill["intent"]]
            assert persona.accepts(exchange, said, item.conversation[-1].text)


@pytest.mark.slow
def test_a_model_is_trained_on_it_by_the_stages_of_the_project(tmp_path):
    project = copy_project(tmp_path, git=False)
    (tmp_path / "data/raw/bakery.yaml").write_text(PERSONA, encoding="utf-8")
    project.edit({"prepare.bakery": {"path": "data/raw/bakery.yaml", "format": "talk", "limit": 200}})
    assert "train_model" in project.repro("train_model")
    lines = [line for file in (tmp_path / "data/chat").glob("*.jsonl") for line in file.open(encoding="utf-8")]
    assert {"talk", "recall"} <= {(json.loads(line)["skill"] or {}).get("name") for line in lines}
    assert (tmp_path / "data/model/model.safetensors").is_file()
