"""Conversations that exercise a skill with a right answer, generated from word lists, facts and phrasings.

The file data/raw/skills.yaml holds the questions and answers of each skill, and its word lists and facts. Only the last
answer of a conversation is scored. Its group is named after the numbers or the name in it, or after the fact and the
phrasing where the facts are a closed set. The first half of the held-back phrasings is for test, the others are for
validation. Of several tasks in a conversation, the one whose group has the least `split_position` comes last, so that
no task that is scored in the test set occurs in a training conversation.

Half of the conversations declare the calculator (chatmill.conversation.chatml.declare_tools), and calculate with it. In
the others small sums are answered without it, and to all else the answer is that there is no calculator.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from random import Random
from typing import Annotated, Any

from pydantic import Field, PositiveFloat

from chatmill.conversation.chatml import Message, Part, declare_tools
from chatmill.datasets.formats.example import Example, as_turns
from chatmill.datasets.formats.skill_problems import PROBLEM_GENERATORS, Problem, TextPair, Texts, Words
from chatmill.datasets.split import SplitName, on_side, split_position
from chatmill.talk.yaml_file import StrictModel, read_yaml

HELD_BACK_EVERY = 25  # conversations, of which one has a held-back phrasing
SAME_GROUPS = {  # what is held out from one skill is held out from the other
    "story": "name_recall",
    "small_sums": "arithmetic",
}


class Opening(StrictModel):
    """A fact that the user states before asking for it, and the assistant's reply."""

    tell: Texts
    reply: Texts


class Skill(StrictModel):
    """The templates, with {slots}, of a skill's questions and answers.

    An answer of several parts takes one template of each list, and is right if it contains the values of the slots.
    """

    weight: PositiveFloat
    opening: Opening | None = None
    known: Texts
    held_back: Texts
    answer: str | list[Texts]

    @property
    def templates(self) -> list[str]:
        """All templates of the skill."""
        openings = self.opening.tell + self.opening.reply if self.opening else []
        answers = [self.answer] if isinstance(self.answer, str) else chain(*self.answer)
        return [*openings, *self.known, *self.held_back, *answers]


class SkillsFile(StrictModel):
    """The content of the file."""

    skills: dict[str, Skill]
    words: Words
    small_talk: Annotated[list[TextPair], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Task:
    """A problem with its phrasing. `opening` comes earlier in the conversation than `exchange`."""

    group: str
    skill: dict[str, Any]
    opening: list[Message]
    exchange: list[Message]


def generate(file: Path, *, limit: int, seed: int) -> Iterator[Example]:
    """`limit` conversations; a smaller limit gives the first of them. Raises ValueError for an invalid file."""
    source = _read(file)
    random = Random(seed)
    for number in islice(count(1), limit):
        has_calculator = random.random() < 0.5
        tasks, small_talk = _draw(source, random, number, has_calculator)
        *others, last = sorted(tasks, key=lambda task: split_position(task.group), reverse=True)
        between = [task.opening + task.exchange for task in others] + small_talk
        if last.opening and not between and random.random() < 0.8:
            between = [_small_talk(source, random)]
        random.shuffle(between)
        conversation = [*last.opening, *(message for turns in between for message in turns), *last.exchange]
        declared = declare_tools(conversation) if has_calculator else conversation
        yield Example(f"{file}: conversation {number}", last.group, as_turns(declared), last.skill)


def _read(file: Path) -> SkillsFile:
    source = read_yaml(file, SkillsFile)
    if source.skills.keys() != PROBLEM_GENERATORS.keys():
        odd = ", ".join(sorted(source.skills.keys() ^ PROBLEM_GENERATORS.keys()))
        raise ValueError(f"{file}: skills: missing or unknown: {odd}: expected exactly {', '.join(PROBLEM_GENERATORS)}")
    for name, skill in source.skills.items():
        _check_slots(f"{file}: skills.{name}", skill, PROBLEM_GENERATORS[name](source.words, Random(0)).slots)
    return source


def _check_slots(place: str, skill: Skill, slots: dict[str, str]) -> None:
    for template in skill.templates:
        try:
            template.format(**slots)
        except (KeyError, IndexError, ValueError) as error:
            expected = ", ".join(f"{{{slot}}}" for slot in slots)
            raise ValueError(f"{place}: unknown slot in {template!r}: expected some of {expected}") from error


def _draw(
    source: SkillsFile, random: Random, number: int, has_calculator: bool
) -> tuple[list[Task], list[list[Message]]]:
    """The tasks of the conversation with this number, at most one per skill, and its small talk."""
    held_back_number, is_known = divmod(number, HELD_BACK_EVERY)
    first = (
        _skill_name(source, random)
        if is_known
        else list(PROBLEM_GENERATORS)[held_back_number % len(PROBLEM_GENERATORS)]
    )
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
    return _exchange(_vary_spelling(question, random), answer)


def _task(source: SkillsFile, name: str, *, random: Random, has_calculator: bool, held_back: bool) -> Task:
    skill, problem = source.skills[name], PROBLEM_GENERATORS[name](source.words, random)
    refuses = bool(problem.call) and not has_calculator and not problem.closed
    phrasings = skill.held_back if held_back else skill.known
    index = random.randrange(len(phrasings))
    question = _vary_spelling(phrasings[index], random).format(**problem.slots)
    if refuses:
        answer = random.choice(source.words.no_calculator)
        scored = {"answers": source.words.no_calculator}
    elif isinstance(skill.answer, str):
        answer = skill.answer.format(**problem.slots)
        scored = {"answers": [answer]}
    else:
        answer = " ".join(random.choice(templates).format(**problem.slots) for templates in skill.answer)
        scored = {"contains": list(problem.slots.values())}
    if held_back:
        side: SplitName = "test" if 2 * index < len(phrasings) else "validation"
        group = on_side(f"skills/{name}/{index}/{problem.key}", side)
    else:
        group = f"skills/{SAME_GROUPS.get(name, name)}/{problem.key}{f'/{index}' if problem.closed else ''}"
    scored_name = "no_calculator" if refuses else name
    return Task(
        group,
        {"name": scored_name, "phrasing": "held_back" if held_back else "known", **scored},
        _opening_exchange(skill.opening, problem, random) if skill.opening else [],
        _exchange(question, answer, problem if has_calculator else None),
    )


def _opening_exchange(opening: Opening, problem: Problem, random: Random) -> list[Message]:
    statement, reply = _vary_spelling(random.choice(opening.tell), random), random.choice(opening.reply)
    return _exchange(statement.format(**problem.slots), reply.format(**problem.slots))


def _exchange(question: str, answer: str, problem: Problem | None = None) -> list[Message]:
    parts: tuple[Part, ...] = (Part("text", answer),)
    if problem and problem.call:
        parts = (Part("call", problem.call), Part("output", problem.slots["result"]), *parts)
    return [Message.from_text("user", question), Message("assistant", parts)]


def _vary_spelling(text: str, random: Random) -> str:
    """The text, sometimes with a lower-case first letter, and sometimes without its final punctuation."""
    if random.random() < 0.2:
        text = text[0].lower() + text[1:]
    if random.random() < 0.2:
        text = text.rstrip(".?! ")
    return text
