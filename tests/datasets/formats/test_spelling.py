from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.datasets.formats.talk_conversation import add_typos, capitalize, vary_spelling
from chatmill.talk.grammar import fold


@pytest.mark.parametrize(
    ("text", "expected"),
    [("hi. how are you?", "Hi. How are you?"), ("if i may, i'm ill", "If I may, I'm ill"), ("1 is in", "1 is in")],
)
def test_sentences_and_the_word_i_begin_with_capitals(text, expected):
    assert capitalize(text) == expected


@given(st.text(), st.integers())
def test_spelling_leaves_the_words(text, seed):
    assert fold(vary_spelling(text, Random(seed))).strip() == fold(text).strip()


def test_there_are_capitals_and_full_stops_mostly():
    random = Random(0)
    written = [vary_spelling("what can i do?", random) for _ in range(200)]
    assert set(written) == {"What can I do?", "What can I do", "what can i do?", "what can i do"}
    assert written.count("What can I do?") > 90


@given(
    st.lists(st.sampled_from(["dog", "Rex", "you", "please", "don't", "é", "house", "ok"]), min_size=1), st.integers()
)
def test_typos_leave_the_words_that_are_kept_and_the_others_nearly(words, seed):
    changed = add_typos(" ".join(words), Random(seed), {"Rex", "house"}).split(" ")
    assert len(changed) == len(words)
    edits = 0
    for before, after in zip(words, changed, strict=True):
        assert after == before or before not in ("Rex", "house", "é", "ok")
        edits += after not in (before, {"you": "u", "please": "pls", "don't": "dont"}.get(before))
        assert abs(len(after) - len(before)) <= 1 or after in ("u", "pls")
    assert edits <= 2


def test_every_message_with_a_long_word_gets_an_error():
    assert {add_typos("something is wrong", Random(seed), ()) for seed in range(50)}.isdisjoint({"something is wrong"})
