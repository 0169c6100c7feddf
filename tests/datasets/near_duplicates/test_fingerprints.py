import random
import string

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chatmill.conversation import Message, render
from chatmill.datasets.near_duplicates import fingerprints as module
from chatmill.datasets.near_duplicates.fingerprints import BANDS, LONG, ROWS, fingerprints

RANDOM = random.Random(1)


def words(count):
    return ["".join(RANDOM.choices(string.ascii_lowercase, k=7)) for _ in range(count)]


def pair(question, answer="yes"):
    return render([Message.from_text("user", question), Message.from_text("assistant", answer)])


def keys(text):
    """The keys of a text: those of beginnings, and the others."""
    found = fingerprints([text])
    return set(found.hashes[found.is_part].tolist()), set(found.hashes[~found.is_part].tolist())


@settings(max_examples=30)
@given(st.lists(st.text(max_size=120), max_size=5))
def test_the_keys_of_a_text_do_not_depend_on_others(texts):
    together = fingerprints(texts)
    for number, text in enumerate(texts):
        alone = fingerprints([text])
        assert sorted(together.hashes[together.owners == number]) == sorted(alone.hashes)


def test_bands_are_shared_as_often_as_the_formula_says():
    expected, shared, trials = 0.0, 0, 300
    for _ in range(trials):
        before, after = words(20), words(20)
        one, other = (" ".join([*before, *words(9), *after]) for _ in range(2))
        similarity = 38 / (38 + 2 * 10)  # shingles of two words
        expected += 1 - (1 - similarity**ROWS) ** BANDS
        shared += bool(keys(one)[1] & keys(other)[1])
    assert abs(shared - expected) / trials < 0.07


def test_short_texts_that_differ_in_a_word_share_a_key_and_others_none():
    for count in range(1, LONG - 3):
        texts = words(count)
        for place in range(count):
            for changed in ([*texts[:place], *texts[place + 1 :]], [*texts[:place], "other", *texts[place + 1 :]]):
                assert keys(pair(" ".join(texts)))[1] & keys(pair(" ".join(changed)))[1]
        assert not keys(pair(" ".join(texts)))[1] & keys(pair(" ".join(words(count)), "no"))[1]


def test_a_part_shares_its_longest_beginning_with_the_whole():
    turns = [pair(" ".join(words(RANDOM.randrange(6, 40)))) for _ in range(5)]
    whole = set(fingerprints(["".join(turns)]).hashes.tolist())
    for start in range(5):
        for end in range(start + 1, 6):
            found = fingerprints(["".join(turns[start:end])])
            assert found.is_whole.sum() == 1
            assert found.hashes[found.is_whole].item() in whole


def test_case_punctuation_spaces_and_system_messages_make_no_difference():
    text = " ".join(words(30))
    system = render([Message.from_text("system", "Be kind.")])
    assert keys(pair(text)) == keys(system + pair(text.upper().replace(" ", " – ")))


def test_signs_are_words():
    text = "北京是中国的首都" * 3
    assert keys(pair(text))[1] & keys(pair(text.replace("首", "省", 1)))[1]


def test_texts_without_words_have_no_keys():
    for texts in ([], [""], ["…!", "?"]):
        found = fingerprints(texts)
        assert len(found.hashes) == len(found.owners) == 0


def test_hashes_are_the_same_on_every_machine():
    found = fingerprints([pair("Where did we walk?", "Along the river.")])
    assert np.bitwise_xor.reduce(found.hashes) == np.uint64(8003692763042232819)
    assert module._powers(3, 4).tolist() == [1, 3, 9, 27]
