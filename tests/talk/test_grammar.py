import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.talk.folding import letters
from chatmill.talk.grammar import Context, Speaker, needed_slots, num_texts, parse, pattern, slots_of, texts

WORDS = {
    "pet": [{"word": "dog", "many": "dogs"}, {"word": "guinea pig", "many": "guinea pigs"}],
    "name": [{"word": "Ana"}, {"word": "Ben"}, {"word": "O'Neil"}],
}
DOG, PIG = WORDS["pet"]


def expansions(text, said=None, drawable=None, times=200):
    node, random = parse(text, WORDS), Random(0)
    return {Speaker(WORDS, random, dict(said or {}), drawable).say(node) for _ in range(times)}


def accepts(text, reply, said=None, drawable=frozenset(), echo="(?!)"):
    context = Context(WORDS, said or {}, drawable, echo)
    return bool(re.fullmatch(pattern(parse(text, WORDS), context), letters(reply)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hi", {"hi"}),
        ("(a|b|)c", {"ac", "bc", "c"}),
        ("a[ b[ c]]", {"a", "a b", "a b c"}),
        ("a[b|c]", {"a", "ab", "ac"}),
        (r"\(a\|b\) \\", {r"(a|b) \ "[:-1]}),
        ("{pet.many} and {pet}", {"dogs and dog", "guinea pigs and guinea pig"}),
        ("{pet}, {pet.2}", {"dog, guinea pig", "guinea pig, dog"}),
        ("{name|your {pet}}", {"your dog", "your guinea pig"}),
    ],
)
def test_a_text_stands_for_these(text, expected):
    assert expansions(text) == expected


def test_a_slot_keeps_its_word_and_the_first_said_is_taken():
    said = {"pet": DOG}
    assert expansions("{pet} {pet.2.many}", said) == {"dog guinea pigs"}
    assert expansions("{name|your {pet}}", said) == {"your dog"}
    assert expansions("{name|your {pet}}", said | {"name": WORDS["name"][0]}) == {"Ana"}


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("Rest, dog!", False),
        ("i am SORRY  what is wrong with your dog", True),
        ("I'm sorry. What is wrong with your dog?", False),
        ("I am sorry. What is wrong with your dogs?", False),
        ("I am sorry. What is wrong with your guinea pig?", False),
        ("I am sorry. What is wrong with your dog? Tell me.", False),
        ("I am sorry. What is wrong with your", False),
        ("", False),
    ],
)
def test_a_reply_is_right_with_the_words_that_were_said(reply, right):
    assert accepts("I am sorry. What is wrong with {name|your {pet}}?", reply, {"pet": DOG}) == right


LEAVES = st.sampled_from(["a", "b c", " ", "it's ", ", ", "\\|", "{pet}", "{pet.many}", "{pet.2}", "{name}", "É. "])
TEXTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda nodes: f"({'|'.join(nodes)})"),
        inner.map(lambda node: f"[{node}]"),
        inner.map(lambda node: f"{{name|{node}}}"),
    ),
    max_leaves=8,
)


@given(TEXTS, st.integers(0, 2**32), st.booleans())
def test_what_a_grammar_gives_matches_it(text, seed, is_said):
    node, said = parse(text, WORDS), {"pet": PIG} if is_said else {}
    speaker = Speaker(WORDS, Random(seed), dict(said), slots_of([node]))
    expansion = speaker.say(node)
    assert accepts(text, f" {expansion.upper()} ?!", said, slots_of([node]))
    assert accepts(text, expansion, speaker.said) or "{name|" in text
    assert not accepts(text, f"{expansion} zebra", said, slots_of([node]))
    assert needed_slots(node) <= speaker.said.keys() <= slots_of([node]) | said.keys()
    assert len(list(texts(node, WORDS))) == num_texts(node, WORDS)
    if not speaker.said:
        assert expansion in texts(node, WORDS)


def test_what_the_user_said_may_stand_for_what_was_not_said():
    assert accepts("{pet|That}? Tell me more.", "A heron? Tell me more!", echo="heron|aheron")
    assert not accepts("{pet|That}? Tell me more.", "A goose? Tell me more!", echo="heron|aheron")


def test_a_word_of_a_slot_may_stand_for_many():
    words = {"name": [parse("(K|M)(a|o)(l|n)", {})]}
    two = {speaker.say(parse("{name} {name.2}", words)) for speaker in (Speaker(words, Random(n)) for n in range(99))}
    assert len(two) > 20 and all(first != second for first, second in map(str.split, two))
    assert pattern(parse("{name}", words), Context(words, {}, frozenset({"name"}), "")) == "(?:(?:k|m)(?:a|o)(?:l|n))"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("my (dog", r"has a bracket at character 4 that is not closed: add '\)'"),
        ("my dog]", r"has '\]' at character 7 without its opening bracket"),
        ("(a]", r"has '\]' at character 3 without"),
        ("a|b", r"has a \| outside of brackets"),
        ("a\\", "ends with a backslash"),
        ("(" * 13 + "a" + ")" * 13, "has brackets more than 12 deep"),
        ("{hat}", "has an unknown slot {hat}: add it to slots, which has pet, name"),
        ("{}", "has an unknown slot {}"),
        ("{pet.old}", "has an unknown form {pet.old}: add 'old' to the word 'dog' of slots.pet"),
        ("{pet.3}", "needs 3 words of the slot pet, which has 2: add some"),
        ("{pet.0}", "needs 0 words"),
    ],
)
def test_what_is_not_of_the_grammar_is_said(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text, WORDS)
