import re
from collections import Counter

import pytest

from chatmill.conversation import render
from chatmill.datasets.formats.talk import generate
from chatmill.evaluation.answering import makes_sense
from chatmill.talk.folding import letters
from chatmill.talk.persona import read_persona
from support.talk import PERSONA, write_persona


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_persona(tmp_path_factory.mktemp("talk"))


@pytest.fixture(scope="module")
def items(file):
    return list(generate(file, limit=3000, seed=1))


@pytest.fixture(scope="module")
def persona(file):
    return read_persona(file)


def exchanges(item):
    texts = [message.text for message in item.conversation if message.role != "system"]
    return list(zip(texts[::2], texts[1::2], strict=True))


def side(item):
    return item.group.split("/")[0]


def test_the_first_conversations_of_a_seed_are_these(file):
    first = next(generate(file, limit=1, seed=1))
    assert (first.group, first.place) == ("train/talk/1", f"{file}: conversation 1")
    assert exchanges(first) == [("Tell me a joke", "What is brown and sticky?")]


def test_no_held_back_phrasing_is_said_in_training(items, persona):
    said = {letters(question) for item in items if side(item) == "train" for question, _ in exchanges(item)}
    assert len(said) > 100 and len(persona.held_back) > 5
    assert not said & persona.held_back


def test_every_answer_is_right_for_what_was_said(items):
    scored = [item for item in items if item.skill]
    assert len(scored) == 200
    for item in scored:
        assert makes_sense(item.skill, item.conversation[-1].text), render(item.conversation)


def test_the_last_telling_of_a_fact_holds(items):
    """Also after any number of exchanges; a fact that was not told is not known."""
    changed, asked = 0, Counter()
    for item in items:
        name = None
        for question, answer in exchanges(item):
            if told := re.fullmatch(r"Nice to meet you, (\w+)!", answer):
                assert told[1].lower() in question.lower()
                changed += name is not None
                assert name != told[1]
                name = told[1]
            if answer.startswith("Your name is"):
                assert answer == f"Your name is {name}."
                asked["told"] += 1
            if answer == "You have not told me your name.":
                assert name is None
                asked["untold"] += 1
    assert changed > 20 and asked["told"] > 100 and asked["untold"] > 20


def test_the_first_answer_is_given_most_often(tmp_path):
    """So a kind of message with many answers is as likely to be recognised by its first words as one with few."""
    file = write_persona(tmp_path, PERSONA.replace('answers: ["{joke}"]', "answers: [One., Two., Three.]"))
    said = Counter(exchanges(item)[0][1] for item in generate(file, limit=1000, seed=1))
    assert said["One."] > 2 * max(said["Two."], said["Three."]) > 50


def test_in_long_chats_facts_are_asked_for_far_from_where_they_were_told(items):
    distances = []
    for item in items:
        said = exchanges(item)
        if side(item) == "train" and len(said) > 28:
            told = [at for at, (_, answer) in enumerate(said) if answer.startswith("Nice to meet you")]
            asked = [at for at, (_, answer) in enumerate(said) if answer.startswith("Your name is")]
            assert len(told) <= 1 and len(asked) <= 1
            distances += [at - told[0] for at in asked]
    assert len(distances) > 20 and min(distances) >= 8 and max(distances) > 16
