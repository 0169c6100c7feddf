import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.conversation import Message, render
from chatmill.datasets.near_duplicates.comparison import ComparedText, Relation, relation

OTHER, SAME, PART, WHOLE = Relation
QUESTION = "Where did we walk in the summer holidays?"
LONG = "We walked along the river for an hour, had soup in a small café and came home by the old bridge in the rain."


def chat(*texts, system=None):
    messages = [Message.from_text(("user", "assistant")[i % 2], text) for i, text in enumerate(texts)]
    return render([Message.from_text("system", system), *messages] if system else messages)


def relate(one, other):
    return relation(ComparedText(one), ComparedText(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Where did we walk in the summer holidays?", "where did we WALK, in the summer-holidays"),
        ("Where did we walk in the summer holidays?", "Where did we hike in the summer holidays?"),
        ("Where did we walk in the summer holidays?", "So where did we walk in the summer holidays?"),
        ("What happened in the summer holidays of 2024?", "Which happened in the summer holidays of 2024?"),
        ("I don't know what Tom meant", "I don ’ t know what Tom means"),
        ("Which one of the bridges is old?", "Which tall of the bridges is old?"),
    ],
)
def test_a_word_of_a_question_may_differ(one, other):
    assert relate(chat(one, LONG), chat(other, LONG)) == SAME


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is 7 + 5 when rounded?", "What is 7 + 6 when rounded?"),
        ("What is 7 + 5 when rounded?", "What is 7 - 5 when rounded?"),
        ("What is 7 - 5 when rounded?", "What is 5 - 7 when rounded?"),
        ("What is 2*(3+4) when rounded?", "What is 2*3+4 when rounded?"),
        ("Is it -5 degrees outside now?", "Is it 5 degrees outside now?"),
        ("How much is 1.5 of it?", "How much is 1,5 of it?"),
        ("Can I take three of the books?", "Can I take two of the books?"),
        ("Can I take the books with me?", "Can I take two the books with me?"),
        ("Where does my friend Tom live?", "Where does my friend Tim live?"),
        ("Paris is far away, isn't it?", "London is far away, isn't it?"),
        ("Did Tom hit Bob in the yard?", "Did Bob hit Tom in the yard?"),
        ("is the dog bigger than the cat here?", "is the cat bigger than the dog here?"),
        ("Why is it safe to swim here?", "Why is it not safe to swim here?"),
        ("Why do you like to swim here?", "Why don't you like to swim here?"),
        ("Why do they always swim in here?", "Why do they never swim in here?"),
        ("Is the soup in this place hot?", "Is the soup in this place cold?"),
        ("Is it possible to walk there?", "Is it impossible to walk there?"),
        ("Where did the two of them go?", "When did the two of them go?"),
        ("Which row were we in, the eleventh?", "Which row were we in, the twelfth?"),
        ("Did they sell a billion of them?", "Did they sell a trillion of them?"),
        ("May a child take 5 mg of it?", "May a child take 5 g of it?"),
        ("Is the bath 3 metres wide there?", "Is the bath 3 feet wide there?"),
        ("Is the shop open on monday here?", "Is the shop open on friday here?"),
        ("Did we last meet here in march?", "Did we last meet here in april?"),
        ("Is the tone of it positive here?", "Is the tone of it neutral here?"),
        ("Is the right one of them b?", "Is the right one of them c?"),
        ("Is it y times z in the end?", "Is it y times w in the end?"),
        ("Do we return if (found) in it?", "Do we return if (!found) in it?"),
        ("Do we return if found in it?", "Do we return if !found in it?"),
        ("他在北京住了很多年吗 真的", "他在上海住了很多年吗 真的"),
        ("где вы были вчера вечером с Иваном", "где вы были вчера вечером с Петром"),
        ("Wo warst du am Abend mit ihm", "Wo warst du am Morgen mit ihm"),
    ],
)
def test_numbers_names_negations_opposites_and_the_order_may_not(one, other):
    for answer in ("Yes.", LONG):
        assert relate(chat(one, answer), chat(other, answer)) == OTHER
        assert relate(chat(QUESTION, f"{LONG} {one}"), chat(QUESTION, f"{LONG} {other}")) == OTHER


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("It is a cat.", "It is a dog.", OTHER),
        ("it is a cat", "It is a cat!", SAME),
        (LONG, LONG.replace("small", "cosy").replace("old", "wooden"), SAME),
        (LONG, "We stayed at home for a week, and saw nobody but the old man from the shop by the church.", OTHER),
        (
            LONG,
            LONG.replace("walked", "ran").replace("soup", "fish").replace("river", "lake").replace("came", "rode"),
            OTHER,
        ),
    ],
)
def test_of_a_long_answer_some_words_may_differ_of_a_short_one_none(one, other, expected):
    assert relate(chat(QUESTION, one), chat(QUESTION, other)) == expected


def test_a_subject_that_changes_in_question_and_answer_makes_another_conversation():
    apples = chat("How do I keep apples fresh for long?", LONG.replace("soup", "apples"))
    assert relate(apples, apples.replace("apples", "pears")) == OTHER


def test_short_texts_differ_by_a_word():
    assert relate(chat("Is it good?", "It is."), chat("Is it warm?", "It is.")) == OTHER


def test_system_messages_and_roles_are_equal():
    assert relate(chat(QUESTION, LONG, system="Be kind."), chat(QUESTION, LONG, system="be kind")) == SAME
    assert relate(chat(QUESTION, LONG, system="Be kind."), chat(QUESTION, LONG, system="Be rude.")) == OTHER
    assert relate(chat(QUESTION, LONG, system="Be kind."), chat(QUESTION, LONG)) == OTHER


TURNS = (QUESTION, LONG, "And what did you eat there?", "Soup, as I said.", "Was it any good?", "It was hot.")


@pytest.mark.parametrize("part", [TURNS[:2], TURNS[:4], TURNS[2:], TURNS[2:4]])
def test_a_conversation_of_messages_of_another_is_its_part(part):
    assert relate(chat(*part), chat(*TURNS)) == PART
    assert relate(chat(*TURNS), chat(*part)) == WHOLE


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ((QUESTION, LONG[:60]), PART),
        ((QUESTION, LONG[:57] + "."), PART),
        ((QUESTION, LONG[:12]), OTHER),  # too few words
        ((QUESTION, LONG[:-12] + "bri"), OTHER),  # too little is cut
        ((QUESTION[:-9], LONG), OTHER),
        ((LONG[:60], LONG), OTHER),
        ((*TURNS[:2], *TURNS[4:]), OTHER),
        (TURNS[4:], OTHER),  # too short
    ],
)
def test_only_the_last_answer_may_be_truncated(part, expected):
    assert relate(chat(*part), chat(*TURNS)) == expected


def test_a_number_is_not_truncated():
    whole = f"{LONG} It was 100 steps from the church."
    assert relate(chat(QUESTION, f"{LONG} It was 1"), chat(QUESTION, whole)) == OTHER
    assert relate(chat(QUESTION, f"{LONG} It was"), chat(QUESTION, whole)) == PART


SAMPLE = ["the", "Tom", "7", "not", "a", "cat,", "dog?", "is", "北京", "don't", "hot", "cold", "<|im_end|>", "(3)"]
WORDS = st.lists(st.sampled_from(SAMPLE), max_size=30)


@given(st.lists(WORDS, min_size=2, max_size=4), st.lists(WORDS, min_size=2, max_size=4))
def test_relations_are_symmetric_and_reflexive(one, other):
    a, b = chat(*map(" ".join, one)), chat(*map(" ".join, other))
    mirrored = {SAME: SAME, OTHER: OTHER, PART: WHOLE, WHOLE: PART}
    assert relate(b, a) == mirrored[relate(a, b)]
    assert relate(a, a) == SAME


def test_a_critical_word_is_seen_at_any_place():
    random_ = random.Random(1)
    words = LONG.split()
    for critical in ("7", "Tom", "not", "never", "isn't", "three"):
        place = random_.randrange(len(words))
        changed = " ".join([*words[:place], critical, *words[place:]])
        assert relate(chat(changed, "Yes."), chat(LONG, "Yes.")) == OTHER
        assert relate(chat(QUESTION, changed), chat(QUESTION, LONG)) == OTHER


def test_long_texts_are_compared_quickly():
    words = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "bdfgklmnprst"] * 60
    changed = [word if number % 8 else f"{word}s" for number, word in enumerate(words)]
    one, other = chat(QUESTION, " ".join(words)), chat(QUESTION, " ".join(changed))
    assert relate(one, other) == SAME
    assert relate(one, other.replace("tut<", "not<")) == OTHER
