from types import SimpleNamespace

import pytest

from chatmill.conversation import Message, Record, render
from chatmill.datasets.formats.talk import generate
from chatmill.evaluation.answering import Parrot, makes_sense, measure_sense
from chatmill.evaluation.held_out_set import sample_test_set
from chatmill.evaluation.intervals import share
from chatmill.talk.persona import read_persona
from support.talk import write_persona

ILL = {"name": "talk", "accepted": ["iamsorrywhatiswrongwithyourdog", "ohno(?:dog|rex)"]}
NAME = {"name": "recall", "contains": ["Ana"], "accepted": ["yournameisana"]}
NO_PET = NAME | {"contains": [], "accepted": ["noyouhavenodog"]}


@pytest.fixture(scope="module")
def persona(tmp_path_factory):
    return read_persona(write_persona(tmp_path_factory.mktemp("sense")))


@pytest.fixture(scope="module")
def items(persona):
    return list(generate(persona.file, limit=1500, seed=1))


@pytest.fixture(scope="module")
def held_out(items, persona):
    """The file of the test set."""
    records = [Record("talk", item.group, render(item.conversation), item.skill) for item in items]
    file = persona.file.with_name("test.jsonl")
    file.write_text("".join(one.to_json() for one in records if one.group.startswith("test/")), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def train(items):
    return [Record("talk", item.group, render(item.conversation)) for item in items if item.skill is None]


@pytest.mark.parametrize(
    ("skill", "reply", "right"),
    [
        (ILL, "i am sorry, what is wrong with your dog", True),
        (ILL, "I am sorry. What is wrong with your cat?", False),
        (ILL, "Oh no, Rex!", True),
        (ILL, "Oh no, Rex! What now?", False),
        (NAME, "Your name is Ana.", True),
        (NAME, "It's Ana!", True),
        (NAME, "Your name is Ben.", False),
        (NAME, "Anastasia.", False),
        (NAME, "You have not told me your name.", False),
        (NO_PET, "No, you have no dog.", True),
        (NO_PET, "Yes, you have a dog.", False),
        (NO_PET, "", False),
    ],
)
def test_a_reply_makes_sense_or_not(skill, reply, right):
    assert makes_sense(skill, reply) == right


def sense(asked, train, reply):
    """What is measured of a model that gives these replies."""
    replies = lambda conversation, _: (Message.from_text("assistant", reply(conversation)), True)  # noqa: E731
    return measure_sense(SimpleNamespace(greedy_reply=replies), asked, train, 9)


def asked(held_out, limit):
    return sample_test_set(held_out, None, 0, 0, limit).talk_questions


def test_the_answers_of_the_test_set_are_all_right_and_silence_is_not(held_out, train):
    conversations = sample_test_set(held_out, None, 0, 0).test.conversations
    answers = {render(conversation[:-1]): conversation[-1].text for conversation in conversations}
    questions = asked(held_out, 10)
    right = sense(questions, train, lambda asked: answers[render(asked)])
    parrot = right["sense"].pop("parrot")
    assert right == {"sense": dict.fromkeys(("first", "later", "noisy"), share([1] * 10)), "recall": share([1] * 10)}
    silent = sense(questions, train, lambda asked: "")
    assert silent["sense"].pop("parrot") == parrot and parrot.keys() == silent["sense"].keys()
    assert {*silent["sense"].values(), silent["recall"]} == {share([0] * 10)}
    assert parrot["later"].value < 0.5


def test_the_parrot_repeats_the_answer_to_the_nearest_message():
    texts = {"my dog is ill": "A", "my cat is ill": "B", "hello there": "C", "is it": "D"}
    parrot = Parrot([Message.from_text("user", text), Message.from_text("assistant", texts[text])] for text in texts)
    for text, answer in {"My cat!": "B", "my dog, is it ill?": "A", "there": "C", "Is it it?": "D"}.items():
        assert parrot.reply([Message.from_text("user", text)]) == answer
    assert Parrot([]).reply([Message.from_text("user", "hi")]) == ""


def test_the_parrot_learns_from_training_conversations_of_personas_alone(held_out):
    record = Record(
        "letters", "letters/1", render([Message.from_text("user", "hi"), Message.from_text("assistant", "x")])
    )
    measured = sense(asked(held_out, 3), [record], lambda asked: "")
    assert measured["sense"]["parrot"]["first"] == share([0, 0, 0])
