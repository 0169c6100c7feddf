import re
from collections import Counter

import pytest

from chatmill.conversation import check_turns, render
from chatmill.datasets.formats.talk import generate
from chatmill.evaluation.answering import makes_sense
from support.paths import ROOT
from support.talk import write_persona

PERSONA = re.search(r"^```yml\n(.*?)^```$", (ROOT / "data/README.md").read_text(), re.DOTALL | re.MULTILINE)[1]


@pytest.fixture
def file(tmp_path):
    return write_persona(tmp_path, PERSONA)


def test_it_is_as_short_as_a_page():
    assert len(PERSONA.splitlines()) <= 50


def test_it_gives_conversations_in_which_everything_occurs(file):
    items = list(generate(file, limit=200, seed=1))
    for item in items:
        check_turns(item.conversation)
    assert Counter(item.group.split("/")[0] for item in items)["train"] == 187
    text = "\n".join(render(item.conversation) for item in items)
    name = "(Ana|Ben|Chris|Dora)"
    for said in ("Welcome!", "on Friday?", "Plum tarts instead of", "with cream", f"Noted, {name}", f"You are {name}"):
        assert re.search(said, text)
    for item in items:
        if item.skill:
            assert makes_sense(item.skill, item.conversation[-1].text)
