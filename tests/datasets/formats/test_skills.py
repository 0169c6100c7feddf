import re
from collections import Counter
from fractions import Fraction

import pytest
import yaml

from chatmill.conversation import declared_tools, render
from chatmill.datasets.formats.skills import PROBLEM_GENERATORS, generate
from chatmill.datasets.split import assign_split
from chatmill.evaluation.answering import is_correct
from support.paths import ROOT

FILE = ROOT / "data/raw/skills.yaml"
SOURCE = yaml.load(FILE.read_bytes(), Loader=yaml.BaseLoader)

SIGNS = {"plus": "+", "minus": "-", "times": "*", "divided by": "/"}


@pytest.fixture(scope="module")
def items():
    return list(generate(FILE, limit=12000, seed=1))


def turns_of(conversation):
    """The messages without the declaration of the calculator."""
    return conversation[bool(declared_tools(conversation)) :]


def exchanges(conversation):
    """(question, answer message) of every turn."""
    return list(zip(turns_of(conversation)[::2], turns_of(conversation)[1::2], strict=True))


def split_of(item):
    return assign_split(item.group, validation_share=0.05, test_share=0.05)


def plain(text):
    return text.lower().rstrip(".?! ")


def slotted(phrasing):
    """A pattern of the phrasing with any numbers, things or words in its slots."""
    slots = {"a": r"\d+", "b": r"\d+", "sum": r"\d.*", "word": r"\w+", "what": "|".join(SOURCE["words"]["numbered"])}
    parts = re.split(r"{(\w+)}", plain(phrasing))
    return "".join(f"(?:{slots.get(part, '.+')})" if i % 2 else re.escape(part) for i, part in enumerate(parts))


def arithmetic(question, answer, conversation):
    a, word, b, result = re.fullmatch(r"(\d+) (plus|minus|times|divided by) (\d+) is (-?[\d.]+)\.", answer).groups()
    asked = re.search(rf"{a} ?({word}|[-+*x/]) ?{b}(?!\d)", question)[1].replace("x", "*")
    value = {"+": Fraction.__add__, "-": Fraction.__sub__, "*": Fraction.__mul__, "/": Fraction.__truediv__}[
        SIGNS[word]
    ](Fraction(a), Fraction(b))
    return asked in (word, SIGNS[word]) and Fraction(result) == value


def name_recall(question, answer, conversation):
    name = re.fullmatch(r"Your name is (\w+)\.", answer)[1]
    after_first_word = question.partition(" ")[2]  # a made-up name may be a word with which a question begins: Say
    return name not in after_first_word and re.search(rf"\b{name}\b", conversation[0].text)


def number_recall(question, answer, conversation):
    thing, number = re.fullmatch(r"Your ([a-z ]+) is (\d+)\.", answer).groups()
    return thing in question and thing in conversation[0].text and re.search(rf"\b{number}\b", conversation[0].text)


TRUTHS = {name: globals()[name] for name in PROBLEM_GENERATORS}


@pytest.mark.parametrize("name", SOURCE["skills"])
def test_answers_are_true_to_what_was_asked(items, name):
    mine = [item for item in items if item.skill["name"] == name]
    for item in mine:
        question, answer = exchanges(item.conversation)[-1]
        assert TRUTHS[name](question.text, answer.text, turns_of(item.conversation)), render(item.conversation)
        assert is_correct(item.skill, answer.text)


def test_the_calculator_is_called_where_it_is_declared_and_there_is_something_to_calculate(items):
    declared = 0
    for item in items:
        calls = bool(declared_tools(item.conversation)) and item.skill["name"] == "arithmetic"
        kinds = [part.kind for part in item.conversation[-1].parts]
        assert kinds == (["call", "output", "text"] if calls else ["text"]), render(item.conversation)
        assert declared_tools(item.conversation) in ([], ["calculator"])
        declared += bool(declared_tools(item.conversation))
    assert 0.63 < declared / len(items) < 0.67


def test_the_first_conversations_of_a_seed_are_these_bytes():
    first = next(generate(FILE, limit=1, seed=1))
    assert render(first.conversation) == (
        "<|im_start|>system\nTools: calculator<|im_end|>\n"
        "<|im_start|>user\nMy room number is 792, please remember it.<|im_end|>\n"
        "<|im_start|>assistant\n792. I have cut it into a beam: 792.<|im_end|>\n"
        "<|im_start|>user\ncan you tell me my room number?<|im_end|>\n"
        "<|im_start|>assistant\nYour room number is 792.<|im_end|>\n"
    )


def test_every_skill_has_enough_tests_of_either_phrasing(items):
    tests = {render(item.conversation): item.skill for item in items if split_of(item) == "test"}
    counts = Counter((skill["name"], skill["phrasing"]) for skill in tests.values())
    for name in SOURCE["skills"]:
        assert 20 <= counts[name, "held_back"] <= 120
        assert counts[name, "known"] >= 30


def test_nothing_that_is_scored_in_a_test_was_trained_on(items):
    trained = {
        (plain(question.text), answer.text)
        for item in items
        if split_of(item) == "train"
        for question, answer in exchanges(item.conversation)
    }
    for item in items:
        if split_of(item) == "test":
            question, answer = exchanges(item.conversation)[-1]
            assert (plain(question.text), answer.text) not in trained


@pytest.mark.parametrize(("side", "part"), [("test", True), ("validation", False)])
def test_half_of_the_held_back_phrasings_are_asked_in_test_and_the_others_in_validation(items, side, part):
    lists = [skill["held_back"] for skill in SOURCE["skills"].values()]
    phrasings = (slotted(text) for texts in lists for i, text in enumerate(texts) if (2 * i < len(texts)) == part)
    pattern = re.compile("|".join(phrasings))
    for item in items:
        asked = [bool(pattern.fullmatch(plain(question.text))) for question, _ in exchanges(item.conversation)]
        if split_of(item) != side:
            assert not any(asked), render(item.conversation)
        held_back = item.skill["phrasing"] == "held_back" and split_of(item) == side
        assert held_back == item.group.startswith(f"{side}/") == asked[-1]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{sum}?", "{total}?", r"skills\.arithmetic: unknown slot in .*expected some of {sum}, "),
        ("  name_recall:", "  sorting:", "skills: unknown: sorting: expected some of arithmetic, name_recall"),
        ('"+": [plus, "+"]', '"+": plus', r"words\.operations\.\+: Input should be a valid list"),
        ("weight: 2\n", "weight: 0\n", r"skills\.\w+\.weight: Input should be greater than 0"),
        ("skills:", "skills: [", "not YAML: while parsing"),
        ("What is {sum}?", "", r"skills\.arithmetic\.known\.0: String should have at least 1 character"),
    ],
)
def test_what_is_wrong_with_the_file_is_said_in_one_line(tmp_path, old, new, message):
    file = tmp_path / "skills.yaml"
    text = FILE.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"skills\.yaml: {message}") as error:
        next(generate(file, limit=1, seed=1))
    assert "\n" not in str(error.value)
