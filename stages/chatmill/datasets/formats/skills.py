"""Conversations that exercise a skill with a right answer, generated from word lists, facts and phrasings."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, PositiveFloat

from chatmill.calculator import calculate
from chatmill.conversation import Message, Part, declare_tools
from chatmill.datasets.formats.example import Example, as_turns
from chatmill.datasets.split import SplitName, on_side, split_position
from chatmill.talk.persona import StrictModel, read_yaml

Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[list[Text], Field(min_length=1)]
Operation = Literal["+", "-", "*", "/"]
Notation = Annotated[list[str], Field(min_length=2)]  # the word of an operation, then its signs
SMALL_NUMBER = 21  # below which half of the numbers of a sum are


# Problems with their right answers.


class Syllables(StrictModel):
    first: Texts
    middle: Texts
    last: Texts


class Words(StrictModel):
    operations: Annotated[dict[Operation, Notation], Field(min_length=1)]
    numbered: Texts
    names: Syllables
    no_calculator: Texts


class Problem(NamedTuple):
    """One problem: the values for the slots of the templates, and the key by which it is assigned to a group."""

    key: str
    slots: dict[str, str]
    call: str = ""  # call of the calculator, whose output is the slot `result`


def _arithmetic(words: Words, random: Random) -> Problem:
    sign = random.choice(list(words.operations))
    top = random.choices((SMALL_NUMBER, 100, 1000), (5, 3, 2))[0]
    a, b = random.randrange(top), random.randrange(top)
    if sign == "/":
        b = random.randrange(1, 31)
        a = b * random.randrange(1, 31)
    word, *signs = words.operations[sign]
    call, written = f"{a}{sign}{b}", random.choice(signs)
    texts = (f"{a} {word} {b}", f"{a} {written} {b}", f"{a}{written}{b}")
    slots = {"sum": random.choice(texts), "a": str(a), "word": word, "b": str(b), "result": calculate(call)}
    return Problem(call, slots, call)


def _name_recall(words: Words, random: Random) -> Problem:
    parts = words.names
    middle = random.choice(parts.middle) if random.random() < 0.6 else ""
    name = random.choice(parts.first) + middle + random.choice(parts.last)
    return Problem(name, {"name": name})


def _number_recall(words: Words, random: Random) -> Problem:
    number = str(random.randrange(10, 1000))
    return Problem(number, {"what": random.choice(words.numbered), "number": number})


PROBLEM_GENERATORS: dict[str, Callable[[Words, Random], Problem]] = {
    "arithmetic": _arithmetic,
    "name_recall": _name_recall,
    "number_recall": _number_recall,
}


# The phrasings of problems, and the conversations that are made of them.

DECLARED = 0.65  # share of the conversations in which the calculator is declared
HELD_BACK_EVERY = 25  # conversations, of which one has a held-back phrasing


class Opening(StrictModel):
    """A fact that the user states before asking for it, and the assistant's reply."""

    tell: Texts
    reply: Texts


class Skill(StrictModel):
    """The templates, with {slots}, of a skill's questions and of its answer."""

    weight: PositiveFloat
    opening: Opening | None = None
    known: Texts
    held_back: Texts
    answer: str


class SkillsFile(StrictModel):
    skills: Annotated[dict[str, Skill], Field(min_length=1)]
    words: Words
    small_talk: Annotated[list[tuple[Text, Text]], Field(min_length=1)]


class Task(NamedTuple):
    """A problem with its phrasing. `opening` comes earlier in the conversation than `exchange`."""

    group: str
    skill: dict[str, Any]
    opening: list[Message]
    exchange: list[Message]


def generate(file: Path, *, limit: int, seed: int) -> Iterator[Example]:
    """`limit` conversations; a smaller limit gives the first of them. Raises ValueError for an invalid file."""
    source, random = _read(file), Random(seed)
    for number in range(1, limit + 1):
        has_calculator = random.random() < DECLARED
        tasks, small_talk = _draw(source, random, number, has_calculator)
        *others, last = sorted(tasks, key=lambda task: split_position(task.group), reverse=True)
        between = [task.opening + task.exchange for task in others] + small_talk
        if last.opening and not between and random.random() < 0.8:
            between = [_small_talk(source, random)]
        random.shuffle(between)
        conversation = [*last.opening, *chain.from_iterable(between), *last.exchange]
        declared = declare_tools(conversation) if has_calculator else conversation
        yield Example(f"{file}: conversation {number}", last.group, as_turns(declared), last.skill)


def _read(file: Path) -> SkillsFile:
    source = read_yaml(file, SkillsFile)
    if odd := ", ".join(sorted(source.skills.keys() - PROBLEM_GENERATORS.keys())):
        raise ValueError(f"{file}: skills: unknown: {odd}: expected some of {', '.join(PROBLEM_GENERATORS)}")
    for name, skill in source.skills.items():
        slots = PROBLEM_GENERATORS[name](source.words, Random(0)).slots
        opening = skill.opening.tell + skill.opening.reply if skill.opening else []
        for template in (*opening, *skill.known, *skill.held_back, skill.answer):
            try:
                template.format(**slots)
            except (KeyError, IndexError, ValueError) as error:
                expected = f"expected some of {', '.join(f'{{{slot}}}' for slot in slots)}"
                raise ValueError(f"{file}: skills.{name}: unknown slot in {template!r}: {expected}") from error
    return source


def _draw(
    source: SkillsFile, random: Random, number: int, has_calculator: bool
) -> tuple[list[Task], list[list[Message]]]:
    held_back_number, is_known = divmod(number, HELD_BACK_EVERY)
    first = _skill_name(source, random) if is_known else list(source.skills)[held_back_number % len(source.skills)]
    make = partial(_task, source, random=random, has_calculator=has_calculator)
    tasks, small_talk = {first: make(first, held_back=not is_known)}, []
    for _ in range(random.choices((0, 1, 2, 3), (50, 30, 15, 5))[0]):
        name = _skill_name(source, random)
        if name in tasks or random.random() < 0.5:
            small_talk.append(_small_talk(source, random))
        else:
            tasks[name] = make(name, held_back=False)
    return list(tasks.values()), small_talk


def _skill_name(source: SkillsFile, random: Random) -> str:
    return random.choices(list(source.skills), [skill.weight for skill in source.skills.values()])[0]


def _small_talk(source: SkillsFile, random: Random) -> list[Message]:
    question, answer = random.choice(source.small_talk)
    return _exchange(_vary_case_and_mark(question, random), answer)


def _task(source: SkillsFile, name: str, *, random: Random, has_calculator: bool, held_back: bool) -> Task:
    skill, problem = source.skills[name], PROBLEM_GENERATORS[name](source.words, random)
    phrasings = skill.held_back if held_back else skill.known
    index = random.randrange(len(phrasings))
    question = _vary_case_and_mark(phrasings[index], random).format(**problem.slots)
    scored_name, answer = name, skill.answer.format(**problem.slots)
    answers = [answer]
    if problem.call and not has_calculator:
        scored_name, answers = "no_calculator", source.words.no_calculator
        answer = random.choice(answers)
    opening: list[Message] = []
    if skill.opening:
        statement = _vary_case_and_mark(random.choice(skill.opening.tell), random)
        reply = random.choice(skill.opening.reply)
        opening = _exchange(statement.format(**problem.slots), reply.format(**problem.slots))
    group, phrasing = f"skills/{name}/{problem.key}", "known"
    if held_back:
        side: SplitName = "test" if 2 * index < len(phrasings) else "validation"
        group, phrasing = on_side(f"skills/{name}/{index}/{problem.key}", side), "held_back"
    scored = {"name": scored_name, "phrasing": phrasing, "answers": answers}
    return Task(group, scored, opening, _exchange(question, answer, problem if has_calculator else None))


def _exchange(question: str, answer: str, problem: Problem | None = None) -> list[Message]:
    parts: tuple[Part, ...] = (Part("text", answer),)
    if problem and problem.call:
        parts = (Part("call", problem.call), Part("output", problem.slots["result"]), *parts)
    return [Message.from_text("user", question), Message("assistant", parts)]


def _vary_case_and_mark(text: str, random: Random) -> str:
    """Sometimes in lower case at the beginning, or without the last mark, as people type."""
    if random.random() < 0.2:
        text = text[0].lower() + text[1:]
    if random.random() < 0.2:
        text = text.rstrip(".?! ")
    return text
