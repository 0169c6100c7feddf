"""Problems of the generated skills with their right answers, drawn from word lists and facts.

The phrasing of questions and answers is added in chatmill.datasets.formats.skills.
"""

from collections.abc import Callable
from random import Random
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, PositiveInt

from chatmill.talk.yaml_file import StrictModel
from chatmill.tools.calculator import calculate

Texts = Annotated[list[str], Field(min_length=1)]
Operation = Literal["+", "-", "*", "/"]
Notation = Annotated[list[str], Field(min_length=2)]  # the word of an operation, then its signs
TextPair = tuple[str, str]
SMALL_SUM, SMALL_FACTOR = 20, 5  # up to which a model learns to calculate without the calculator


class Syllables(StrictModel):
    """The syllables that names are composed of."""

    first: Texts
    middle: Texts
    last: Texts


class Words(StrictModel):
    """The word lists and facts that problems are drawn from."""

    operations: Annotated[dict[Operation, Notation], Field(min_length=1)]
    units: Annotated[list[tuple[str, str, PositiveInt]], Field(min_length=1)]
    larger: Texts
    smaller: Texts
    rising: Texts
    falling: Texts
    spelled: Texts
    opposites: Annotated[list[TextPair], Field(min_length=1)]
    months: Texts
    days: Texts
    capitals: Annotated[dict[str, str], Field(min_length=1)]
    numbered: Texts
    names: Syllables
    story_things: Texts
    no_calculator: Texts
    unknowable: Annotated[dict[str, Texts], Field(min_length=1)]
    answered: dict[str, str]


class Problem(NamedTuple):
    """One problem: the values for the slots of the templates, and the key by which it is assigned to a group."""

    key: str
    slots: dict[str, str]
    closed: bool = False  # whether it is from a closed set of facts; the group is then that of the key and the phrasing
    call: str = ""  # call of the calculator, whose output is the slot `result`


def _arithmetic(words: Words, random: Random) -> Problem:
    sign = random.choice(list(words.operations))
    top = 100 if random.random() < 0.7 else 1000
    a, b = random.randrange(top), random.randrange(top)
    if sign == "/":
        b = random.randrange(1, 31)
        a = b * random.randrange(1, 31)
    return _calculation(words, random, a, sign, b)


def _small_sums(words: Words, random: Random) -> Problem:
    """A sum or difference of numbers up to SMALL_SUM, or a product of factors up to SMALL_FACTOR."""
    sign = random.choice([sign for sign in words.operations if sign != "/"])
    if sign == "*":
        return _calculation(words, random, random.randint(0, SMALL_FACTOR), sign, random.randint(0, SMALL_FACTOR))
    a, b = sorted((random.randint(0, SMALL_SUM), random.randint(0, SMALL_SUM)))
    return _calculation(words, random, a, sign, b - a) if sign == "+" else _calculation(words, random, b, sign, a)


def _calculation(words: Words, random: Random, a: int, sign: Operation, b: int) -> Problem:
    word, *signs = words.operations[sign]
    call, written = f"{a}{sign}{b}", random.choice(signs)
    texts = (f"{a} {word} {b}", f"{a} {written} {b}", f"{a}{written}{b}")
    slots = {"sum": random.choice(texts), "a": str(a), "word": word, "b": str(b), "result": calculate(call)}
    small = {"+": a + b <= SMALL_SUM, "-": b <= a <= SMALL_SUM, "*": max(a, b) <= SMALL_FACTOR}.get(sign, False)
    return Problem(call, slots, small, call)


def _units(words: Words, random: Random) -> Problem:
    large, small, factor = random.choice(words.units)
    n = random.randrange(2, 100)
    if random.random() < 0.6:
        call, source, target = f"{n}*{factor}", large, small
    else:
        n *= factor
        call, source, target = f"{n}/{factor}", small, large
    slots = {"n": str(n), "from": source, "to": target, "result": calculate(call)}
    return Problem(f"{n} {source} {target}", slots, call=call)


def _numbers(random: Random, count: int) -> list[int]:
    """Distinct numbers below 100, with more of them below ten than a uniform choice gives."""
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        drawn[random.randrange(10 if random.random() < 0.05 else 100)] = None
    return list(drawn)


def _comparing(words: Words, random: Random) -> Problem:
    a, b = _numbers(random, 2)
    larger = random.random() < 0.5
    first, second = (max(a, b), min(a, b)) if larger else (min(a, b), max(a, b))
    which = random.choice(words.larger if larger else words.smaller)
    slots = {"a": str(a), "b": str(b), "which": which, "first": str(first), "second": str(second)}
    return Problem(f"{min(a, b)} {max(a, b)}", slots)


def _sorting(words: Words, random: Random) -> Problem:
    numbers = _numbers(random, 3)
    falling = random.random() < 0.5
    slots = {
        "numbers": ", ".join(map(str, numbers)),
        "order": random.choice(words.falling if falling else words.rising),
        "sorted": ", ".join(map(str, sorted(numbers, reverse=falling))),
    }
    return Problem(" ".join(map(str, sorted(numbers))), slots)


def _letters(words: Words, random: Random) -> Problem:
    word = random.choice(words.spelled)
    return Problem(word, {"word": word, "letters": "-".join(word), "count": str(len(word))}, closed=True)


def _opposites(words: Words, random: Random) -> Problem:
    word, opposite = random.sample(random.choice(words.opposites), 2)
    return Problem(word, {"word": word, "opposite": opposite}, closed=True)


def _calendar(words: Words, random: Random) -> Problem:
    kind, names = random.choice((("day", words.days), ("month", words.months)))
    side, step = random.choice((("after", 1), ("before", -1)))
    index = random.randrange(len(names))
    slots = {"kind": kind, "side": side, "item": names[index], "result": names[(index + step) % len(names)]}
    return Problem(f"{side} {names[index]}", slots, closed=True)


def _capitals(words: Words, random: Random) -> Problem:
    country, capital = random.choice(list(words.capitals.items()))
    return Problem(country, {"country": country, "capital": capital}, closed=True)


def _name(words: Words, random: Random) -> str:
    parts = words.names
    middle = random.choice(parts.middle) if random.random() < 0.6 else ""
    return random.choice(parts.first) + middle + random.choice(parts.last)


def _name_recall(words: Words, random: Random) -> Problem:
    name = _name(words, random)
    return Problem(name, {"name": name})


def _number_recall(words: Words, random: Random) -> Problem:
    number = str(random.randrange(10, 1000))
    return Problem(number, {"what": random.choice(words.numbered), "number": number})


def _story(words: Words, random: Random) -> Problem:
    slots = {"hero": _name(words, random), "thing": random.choice(words.story_things)}
    return Problem(slots["hero"], slots)


def _refusal(words: Words, random: Random) -> Problem:
    reason, topics = random.choice(list(words.unknowable.items()))
    topic = random.choice(topics)
    known = " ".join(words.answered.get(word, word) for word in topic.split())
    return Problem(topic, {"asked": topic, "known": known, "reason": reason}, closed=True)


PROBLEM_GENERATORS: dict[str, Callable[[Words, Random], Problem]] = {
    "arithmetic": _arithmetic,
    "small_sums": _small_sums,
    "units": _units,
    "comparing": _comparing,
    "sorting": _sorting,
    "spelling": _letters,
    "counting_letters": _letters,
    "opposites": _opposites,
    "calendar": _calendar,
    "capitals": _capitals,
    "name_recall": _name_recall,
    "number_recall": _number_recall,
    "story": _story,
    "refusal": _refusal,
}
