import calendar
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
BASE = {  # of each unit, in a common one
    **{"millimeters": Fraction(1, 1000), "centimeters": Fraction(1, 100), "meters": 1, "kilometers": 1000},
    **{"grams": 1, "kilograms": 1000, "tons": 10**6, "milliliters": 1, "liters": 1000, "cents": 1, "dollars": 100},
    **{"inches": 1, "feet": 12, "yards": 36, "seconds": 1, "minutes": 60, "hours": 3600, "days": 86400},
    **{"weeks": 7 * 86400, "months": 1, "years": 12},
}


@pytest.fixture(scope="module")
def items():
    return list(generate(FILE, limit=30000, seed=1))


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
    slots = {slot: r"\d+" for slot in ("n", "a", "b")} | {"sum": r"\d.*", "word": r"\w+", "numbers": r"[\d, ]+"}
    slots |= {"asked": "|".join(topic.lower() for topics in SOURCE["words"]["unknowable"].values() for topic in topics)}
    slots |= {"kind": "day|month", "side": "after|before", "what": "|".join(SOURCE["words"]["numbered"])}
    parts = re.split(r"{(\w+)}", plain(phrasing))
    return "".join(f"(?:{slots.get(part, '.+')})" if i % 2 else re.escape(part) for i, part in enumerate(parts))


def arithmetic(question, answer, conversation):
    a, word, b, result = re.fullmatch(r"(\d+) (plus|minus|times|divided by) (\d+) is (-?[\d.]+)\.", answer).groups()
    asked = re.search(rf"{a} ?({word}|[-+*x/]) ?{b}(?!\d)", question)[1].replace("x", "*")
    value = {"+": Fraction.__add__, "-": Fraction.__sub__, "*": Fraction.__mul__, "/": Fraction.__truediv__}[
        SIGNS[word]
    ](Fraction(a), Fraction(b))
    return asked in (word, SIGNS[word]) and Fraction(result) == value


small_sums = arithmetic


def units(question, answer, conversation):
    n, given_unit, result, unit = re.fullmatch(r"(\d+) (\w+) is (\d+) (\w+)\.", answer).groups()
    asked = f"{n} {given_unit}" in question and unit in question.replace(f"{n} {given_unit}", "")
    return asked and int(n) * BASE[given_unit] == int(result) * BASE[unit]


def comparing(question, answer, conversation):
    first, which, second = re.fullmatch(r"(\d+) is (\w+) than (\d+)\.", answer).groups()
    right = int(first) > int(second) if which in ("larger", "bigger", "greater") else int(first) < int(second)
    return right and which in question and sorted((first, second)) == sorted(re.findall(r"\d+", question))


def sorting(question, answer, conversation):
    falling = re.search("largest to smallest|large to small|high to low", question) is not None
    return answer == ", ".join(sorted(re.findall(r"\d+", question), key=int, reverse=falling))


def spelling(question, answer, conversation):
    letters = answer.split("-")
    return all(len(letter) == 1 for letter in letters) and re.search(rf"\b{''.join(letters)}\b", question)


def counting_letters(question, answer, conversation):
    letters, count = re.fullmatch(r"([a-z-]+): (\d+) letters\.", answer).groups()
    return spelling(question, letters, conversation) and int(count) == len(letters.split("-"))


def opposites(question, answer, conversation):
    word, opposite = re.fullmatch(r"The opposite of (\w+) is (\w+)\.", answer).groups()
    pairs = SOURCE["words"]["opposites"]
    return re.search(rf"\b{word}\b", question) and ([word, opposite] in pairs or [opposite, word] in pairs)


def calendar_(question, answer, conversation):
    result, side_word, item = re.fullmatch(r"(\w+) comes (after|before) (\w+)\.", answer).groups()
    names = list(calendar.day_name) if item in list(calendar.day_name) else list(calendar.month_name)[1:]
    step = 1 if side_word == "after" else -1
    asked = re.search(rf"\b{side_word}\b", question) and re.search(rf"\b{item}\b", question)
    return asked and names[(names.index(item) + step) % len(names)] == result


def capitals(question, answer, conversation):
    country, capital = re.fullmatch(r"The capital of (\w+) is ([\w ]+)\.", answer).groups()
    known = {"France": "Paris", "Japan": "Tokyo", "Turkey": "Ankara", "Canada": "Ottawa", "Morocco": "Rabat"}
    return country in question and known.get(country, capital) == capital


def name_recall(question, answer, conversation):
    name = re.fullmatch(r"Your name is (\w+)\.", answer)[1]
    return name not in question and re.search(rf"\b{name}\b", conversation[0].text)


def number_recall(question, answer, conversation):
    thing, number = re.fullmatch(r"Your ([a-z ]+) is (\d+)\.", answer).groups()
    return thing in question and thing in conversation[0].text and re.search(rf"\b{number}\b", conversation[0].text)


def story(question, answer, conversation):
    hero, thing = re.search(r"(?:about|with) (\w+) and a (\w+)", question).groups()
    return is_correct({"contains": [hero, thing]}, answer) and not is_correct({"contains": ["nobody else"]}, answer)


def refusal(question, answer, conversation):
    return re.fullmatch(r"I'm sorry, I can't know (?!.*\b(my|am)\b)[^.]+\. (I|Nobody) [^.]+\.", answer)


TRUTHS = {**{name: globals()[name] for name in PROBLEM_GENERATORS if name != "calendar"}, "calendar": calendar_}


@pytest.mark.parametrize("name", PROBLEM_GENERATORS)
def test_answers_are_true_to_what_was_asked(items, name):
    mine = [item for item in items if item.skill["name"] == name]
    for item in mine:
        question, answer = exchanges(item.conversation)[-1]
        assert TRUTHS[name](question.text, answer.text, turns_of(item.conversation)), render(item.conversation)
        assert is_correct(item.skill, answer.text)


def test_the_calculator_is_called_where_it_is_declared_and_there_is_something_to_calculate(items):
    declared = 0
    for item in items:
        calls = bool(declared_tools(item.conversation)) and item.skill["name"] in ("arithmetic", "units", "small_sums")
        kinds = [part.kind for part in item.conversation[-1].parts]
        assert kinds == (["call", "output", "text"] if calls else ["text"]), render(item.conversation)
        assert declared_tools(item.conversation) in ([], ["calculator"])
        declared += bool(declared_tools(item.conversation))
    assert 0.48 < declared / len(items) < 0.52


def test_the_first_conversations_of_a_seed_are_these_bytes():
    first = next(generate(FILE, limit=1, seed=1))
    assert render(first.conversation) == (
        "<|im_start|>system\nTools: calculator<|im_end|>\n"
        "<|im_start|>user\nWhat do you get for 17 / 1?<|im_end|>\n"
        "<|im_start|>assistant\n<|python_start|>17/1<|python_end|><|output_start|>17<|output_end|>"
        "17 divided by 1 is 17.<|im_end|>\n"
        "<|im_start|>user\nPlease call me Jodon<|im_end|>\n"
        "<|im_start|>assistant\nNice to meet you, Jodon!<|im_end|>\n"
        "<|im_start|>user\nWhat did I say my name was?<|im_end|>\n"
        "<|im_start|>assistant\nYour name is Jodon.<|im_end|>\n"
        "<|im_start|>user\nWhich number is less, 89 or 92<|im_end|>\n"
        "<|im_start|>assistant\n89 is less than 92.<|im_end|>\n"
    )
    assert first.group == "skills/comparing/89 92"


def test_every_skill_has_enough_tests_of_either_phrasing(items):
    tests = {render(item.conversation): item.skill for item in items if split_of(item) == "test"}
    counts = Counter((skill["name"], skill["phrasing"]) for skill in tests.values())
    for name in PROBLEM_GENERATORS:
        assert (10 if name in ("arithmetic", "units") else 20) <= counts[name, "held_back"] <= 60
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


@pytest.mark.parametrize(("side", "part"), [("test", slice(2)), ("validation", slice(2, 4))])
def test_half_of_the_held_back_phrasings_are_asked_in_test_and_the_others_in_validation(items, side, part):
    phrasings = (slotted(text) for skill in SOURCE["skills"].values() for text in skill["held_back"][part])
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
        (
            "capital of {country}?",
            "capital of {land}?",
            r"skills\.capitals: unknown slot in .*expected some of {country}, ",
        ),
        (
            "  opposites:\n    weight",
            "  antonyms:\n    weight",
            "skills: missing or unknown: antonyms, opposites: expected",
        ),
        ("smaller: [smaller, lower, less]", "smaller: lower", r"words\.smaller: Input should be a valid list"),
        ("weight: 3\n", "weight: 0\n", r"skills\.\w+\.weight: Input should be greater than 0"),
        ("    - [yards, feet, 3]", "    - [yards, feet]", r"words\.units\.7\.2: Field required"),
        ("skills:", "skills: [", "not YAML: while parsing"),
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
