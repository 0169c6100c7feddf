import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.conversation import Message, Record, parse, render
from chatmill.soft_tokenizer.embedding_evaluation import NOISE_KINDS, add_noise

LETTER = [
    Message.from_text("user", "Could you write a letter to my friend about the garden? " * 20),
    Message.from_text("assistant", "Dear friend, the garden is full of flowers this year. " * 20),
]


def noisy(conversations, kind):
    records = [Record("talk", "1", render(conversation)) for conversation in conversations]
    return [parse(record.text) for record in add_noise(records, kind)]


def words(conversation):
    return [word for message in conversation for word in message.text.split()]


def changed(kind):
    (other,) = noisy([LETTER], kind)
    return [(a, b) for a, b in zip(words(LETTER), words(other), strict=True) if a != b]


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_the_same_conversation_always_becomes_the_same(kind):
    assert noisy([LETTER], kind) == noisy([LETTER[:1], LETTER], kind)[1:]


def test_a_typo_is_one_letter_more_or_less_or_two_that_change_places():
    for word, slip in changed("typos"):
        lengths = len(slip) - len(word)
        assert abs(lengths) == 1 or (lengths == 0 and sorted(word) == sorted(slip))


@given(st.text(), st.sampled_from(NOISE_KINDS))
def test_any_text_remains_a_conversation(text, kind):
    (conversation,) = noisy([[Message.from_text("user", text), Message.from_text("assistant", text)]], kind)
    assert parse(render(conversation)) == conversation
    assert [re.sub(r"[^\d\s]", "", message.text) for message in conversation] == [re.sub(r"[^\d\s]", "", text)] * 2
