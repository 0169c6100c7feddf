"""Conversations that exercise a skill with a right answer, generated from word lists, facts and phrasings.

The file (data/raw/skills.yaml) says how each skill is asked and answered, and of what. What a conversation asks last is
what is scored. Its group is named for what is held back with it: the numbers or the name in it, or for closed sets of
facts the fact in this phrasing. A conversation that asks several things asks the one with the least `position` last,
so that whatever is scored in a test was seen in no conversation that is trained on.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, ValidationError

from chatmill.calculator import calculate
from chatmill.conversation import Message, Part
from chatmill.formats.item import Item
from chatmill.split import HELD_BACK, position

HELD_BACK_EVERY = 50  # conversations
SAME_GROUPS = {"story": "name_recall"}  # a name held back from one skill is held back from the other

Texts = Annotated[list[str], Field(min_length=1)]
Pair = tuple[str, str]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Skill(_Section):
    """How a skill is asked and answered: templates with {slots}. Of what is recalled, `tell` and `reply` come first."""

    weight: PositiveFloat
    known: Texts
    held_back: Texts
    answer: str = ""
    tell: list[str] = []
    reply: list[str] = []


class Syllables(_Section):
    """Names are put together from these."""

    first: Texts
    middle: Texts
    last: Texts


class Words(_Section):
    """What the skills are about."""

    operations: dict[str, Texts]
    units: list[tuple[str, str, int]]
    larger: Texts
    smaller: Texts
    rising: Texts
    falling: Texts
    spelled: Texts
    opposites: list[Pair]
    months: Texts
    days: Texts
    capitals: dict[str, str]
    numbered: Texts
    names: Texts
    syllables: Syllables
    story_things: Texts
    story: list[Texts]
    unknowable: dict[str, Texts]
    answered: dict[str, str]


class Source(_Section):
    """The whole file."""

    skills: dict[str, Skill]
    words: Words
    small_talk: list[Pair]


class Problem(NamedTuple):
    """What is asked: the slots of the templates, and the key of what is held back with it."""

    key: str
    slots: dict[str, str]
    closed: bool = False  # of a closed set of facts: the key holds for one phrasing only
    call: str = ""  # of the calculator, whose output is the slot `result`
    story: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """A problem in words. `opening` is what must be said some time before it is asked."""

    group: str
    skill: dict[str, Any]
    opening: list[Message]
    exchange: list[Message]


def generate(file: Path, *, limit: int, seed: int) -> Iterator[Item]:
    """`limit` conversations; those of a smaller limit are the first of them. Raises ValueError for a bad file."""
    source = _read(file)
    random = Random(seed)
    for number in islice(count(1), limit):
        tasks, talk = _draw(source, random, number)
        *others, last = sorted(tasks, key=lambda task: position(task.group), reverse=True)
        between = [task.opening + task.exchange for task in others] + talk
        if last.opening and not between and random.random() < 0.8:
            between = [_small_talk(source, random)]
        random.shuffle(between)
        conversation = [*last.opening, *(message for turns in between for message in turns), *last.exchange]
        yield Item(f"{file}: conversation {number}", last.group, conversation, last.skill)


def _read(file: Path) -> Source:
    try:
        source = Source.model_validate(yaml.load(file.read_bytes(), Loader=yaml.BaseLoader))
    except yaml.YAMLError as error:
        raise ValueError(f"{file}: not YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if source.skills.keys() != PROBLEMS.keys():
        odd = ", ".join(sorted(source.skills.keys() ^ PROBLEMS.keys()))
        raise ValueError(f"{file}: skills: missing or unknown: {odd}; expected exactly {', '.join(PROBLEMS)}")
    for name, skill in source.skills.items():
        _check_slots(f"{file}: skills.{name}", skill, PROBLEMS[name](source.words, Random(0)).slots)
    return source


def _check_slots(place: str, skill: Skill, slots: dict[str, str]) -> None:
    for template in (*skill.known, *skill.held_back, *skill.tell, *skill.reply, skill.answer):
        try:
            template.format(**slots)
        except (KeyError, IndexError, ValueError) as error:
            expected = ", ".join(f"{{{slot}}}" for slot in slots)
            raise ValueError(f"{place}: bad slot in {template!r}: expected some of {expected}") from error


def _draw(source: Source, random: Random, number: int) -> tuple[list[Task], list[list[Message]]]:
    """What the conversation of this number asks, each skill once, and the small talk in it."""
    held_back_number, is_known = divmod(number, HELD_BACK_EVERY)
    first = _skill_name(source, random) if is_known else list(PROBLEMS)[held_back_number % len(PROBLEMS)]
    tasks, talk = {first: _task(source, first, random, held_back=not is_known)}, []
    for _ in range(random.choices((0, 1, 2, 3), (50, 30, 15, 5))[0]):
        name = _skill_name(source, random)
        if name in tasks or random.random() < 0.5:
            talk.append(_small_talk(source, random))
        else:
            tasks[name] = _task(source, name, random, held_back=False)
    return list(tasks.values()), talk


def _skill_name(source: Source, random: Random) -> str:
    return random.choices(list(source.skills), [skill.weight for skill in source.skills.values()])[0]


def _small_talk(source: Source, random: Random) -> list[Message]:
    said, answer = random.choice(source.small_talk)
    return _exchange(_casual(said, random), answer)


def _task(source: Source, name: str, random: Random, *, held_back: bool) -> Task:
    skill, problem = source.skills[name], PROBLEMS[name](source.words, random)
    phrasings = skill.held_back if held_back else skill.known
    index = random.randrange(len(phrasings))
    answer = problem.story or skill.answer.format(**problem.slots)
    question = _casual(phrasings[index], random).format(**problem.slots)
    scored = {"contains": [problem.slots["hero"], problem.slots["thing"]]} if problem.story else {"answers": [answer]}
    if held_back:
        group = f"{HELD_BACK}skills/{name}/{index}/{problem.key}"
    else:
        group = f"skills/{SAME_GROUPS.get(name, name)}/{problem.key}{f'/{index}' if problem.closed else ''}"
    return Task(
        group,
        {"name": name, "phrasing": "held_back" if held_back else "known", **scored},
        _opening(skill, problem, random) if skill.tell else [],
        _exchange(question, answer, problem),
    )


def _opening(skill: Skill, problem: Problem, random: Random) -> list[Message]:
    said, reply = random.choice(skill.tell), random.choice(skill.reply)
    return _exchange(_casual(said, random).format(**problem.slots), reply.format(**problem.slots))


def _exchange(question: str, answer: str, problem: Problem | None = None) -> list[Message]:
    parts = (Part("text", answer),)
    if problem and problem.call:
        parts = (Part("call", problem.call), Part("output", problem.slots["result"]), *parts)
    return [Message.plain("user", question), Message("assistant", parts)]


def _casual(text: str, random: Random) -> str:
    """The text as people also type it: with a small letter at its start, or no mark at its end, or both."""
    if random.random() < 0.2:
        text = text[0].lower() + text[1:]
    if random.random() < 0.2:
        text = text.rstrip(".?! ")
    return text


def _arithmetic(words: Words, random: Random) -> Problem:
    sign = random.choice(list(words.operations))
    word, *signs = words.operations[sign]
    top = 100 if random.random() < 0.7 else 1000
    a, b = random.randrange(top), random.randrange(top)
    if sign == "/":
        b = random.randrange(1, 31)
        a = b * random.randrange(1, 31)
    call, written = f"{a}{sign}{b}", random.choice(signs)
    texts = (f"{a} {word} {b}", f"{a} {written} {b}", f"{a}{written}{b}")
    slots = {"sum": random.choice(texts), "a": str(a), "word": word, "b": str(b), "result": calculate(call)}
    return Problem(call, slots, call=call)


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


def _comparing(words: Words, random: Random) -> Problem:
    a, b = random.sample(range(100), 2)
    larger = random.random() < 0.5
    first, second = (max(a, b), min(a, b)) if larger else (min(a, b), max(a, b))
    which = random.choice(words.larger if larger else words.smaller)
    slots = {"a": str(a), "b": str(b), "which": which, "first": str(first), "second": str(second)}
    return Problem(f"{min(a, b)} {max(a, b)}", slots)


def _sorting(words: Words, random: Random) -> Problem:
    numbers = random.sample(range(100), 3 if random.random() < 0.7 else 4)
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
    if random.random() < 0.3:
        return random.choice(words.names)
    syllables = words.syllables
    middle = random.choice(syllables.middle) if random.random() < 0.3 else ""
    return random.choice(syllables.first) + middle + random.choice(syllables.last)


def _name_recall(words: Words, random: Random) -> Problem:
    name = _name(words, random)
    return Problem(name, {"name": name})


def _number_recall(words: Words, random: Random) -> Problem:
    number = str(random.randrange(10, 1000))
    return Problem(number, {"what": random.choice(words.numbered), "number": number})


def _story(words: Words, random: Random) -> Problem:
    slots = {"hero": _name(words, random), "thing": random.choice(words.story_things)}
    return Problem(slots["hero"], slots, story=" ".join(random.choice(part).format(**slots) for part in words.story))


def _refusal(words: Words, random: Random) -> Problem:
    reason, topics = random.choice(list(words.unknowable.items()))
    asked = random.choice(topics)
    known = " ".join(words.answered.get(word, word) for word in asked.split())
    return Problem(asked, {"asked": asked, "known": known, "reason": reason}, closed=True)


PROBLEMS: dict[str, Callable[[Words, Random], Problem]] = {
    "arithmetic": _arithmetic,
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
