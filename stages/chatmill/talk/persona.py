"""Reads a persona: a YAML file of intents and facts, from which conversations are generated and replies are judged.

It may be divided over the files of a folder. Errors are of one line, which names the place in the file or folder.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from chatmill.datasets.formats.containers import files_of
from chatmill.talk.folding import fold, letters
from chatmill.talk.grammar import (
    Context,
    Node,
    Text,
    Word,
    Words,
    is_usable,
    needed_slots,
    num_texts,
    parse,
    pattern,
    slots_of,
    texts,
)

_REMEDIES = {"missing": ": add it", "too_short": ": add some", "extra_forbidden": ": remove it, or correct its name"}
MAX_TEXTS = 100_000  # of one phrasing, in which slots count as one text
MAX_TEXTS_WITH_WORDS = 10_000  # up to which a phrasing is compared with others with all words of its slots
FEW_TEXTS = 30  # known texts of an exchange, below which it is hardly learnt


class StrictModel(BaseModel):
    """A section of a file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


_Model = TypeVar("_Model", bound=BaseModel)
_Loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # libyaml is faster, and reads [why?] as a list of one text


def read_yaml(path: Path, model: type[_Model], loader: Any = _Loader) -> _Model:
    """The content of a file, or of those of a folder together; by the usual loader all scalars are text.

    Raises ValueError with file, place and remedy.
    """
    first, *others = files_of(path, ["*.yaml", "*.yml"])
    content = _load(first, loader)
    for file in others:
        content = _join(content, _load(file, loader), f"{file}: ")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        errors = error.errors()
        wrong = max(errors, key=lambda found: found["type"] == "extra_forbidden")  # a misspelt key is missing, too
        alike = [found for found in errors if found["type"] == "missing" == wrong["type"]] or [wrong]
        places = ", ".join(".".join(map(str, found["loc"])) or "the file" for found in alike)
        raise ValueError(f"{path}: {places}: {wrong['msg']}{_REMEDIES.get(wrong['type'], '')}") from error


def _load(file: Path, loader: Any) -> Any:
    try:
        return yaml.load(file.read_bytes(), Loader=loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{file}: not YAML: {' '.join(str(error).split())}") from error


def _join(content: Any, other: Any, place: str) -> Any:
    """A map with the keys of both, or a list of all entries. Raises ValueError where both have something else."""
    if isinstance(content, dict) and isinstance(other, dict):
        both = {key: _join(content[key], other[key], f"{place}{key}.") for key in content if key in other}
        return {**content, **other, **both}
    if isinstance(content, list) and isinstance(other, list):
        return content + other
    if place.endswith(": "):
        raise ValueError(f"{place}expected a map, as other files of the folder are: write its sections, or move it")
    raise ValueError(f"{place.removesuffix('.')} is in another file of the folder, too: remove it from one of them")


def _numbered(entries: Any) -> Any:
    """A list as a map with the keys 1, 2, …"""
    return {str(number): entry for number, entry in enumerate(entries, 1)} if isinstance(entries, list) else entries


Texts = Annotated[list[str], Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^\w[\w -]*$")]
SlotName = Annotated[str, Field(pattern=r"^[^\W\d]\w*$")]
SlotWord = Annotated[
    dict[SlotName, str], BeforeValidator(lambda word: {"word": word} if isinstance(word, str) else word)
]


class Phrasings(StrictModel):
    known: Texts
    held_back: Texts


class ExchangeSection(Phrasings):
    """What a user says in many ways, what is answered, and the exchanges that may come next."""

    weight: Annotated[float, Field(gt=0, le=1_000_000)] = 1
    answers: Texts
    follow: Annotated[dict[Name, "ExchangeSection"], BeforeValidator(_numbered)] = Field({})


class FactSection(StrictModel):
    """What a user tells, and asks for later; `unknown` are the answers before it was told."""

    tell: Phrasings
    reply: Texts
    ask: Phrasings
    answers: Texts
    unknown: Texts


class PersonaFile(StrictModel):
    """The content of the file. `again` are openings of a fact that is told anew, `before` and `after` words that people
    put around anything that they say.
    """

    slots: dict[SlotName, Annotated[list[SlotWord], Field(min_length=1)]] = Field({})
    intents: Annotated[dict[Name, ExchangeSection], Field(min_length=1)]
    facts: dict[Name, FactSection] = Field({})
    again: Texts = Field(["no, ", "sorry, ", "actually, "])
    before: list[str] = Field([])
    after: list[str] = Field([])


@dataclass(frozen=True, slots=True)
class Exchange:
    """A message of the user and the answers to it. `path` is such as `pet_is_ill/does_not_eat`."""

    path: str
    weight: float
    known: tuple[Node, ...]
    held_back: tuple[Node, ...]
    answers: tuple[Node, ...]
    drawable: frozenset[str]  # slots that the answers draw
    follow: tuple["Exchange", ...] = ()

    @property
    def phrasings(self) -> tuple[Node, ...]:
        return self.known + self.held_back

    @property
    def size(self) -> int:
        """The number of exchanges from this one on."""
        return 1 + sum(following.size for following in self.follow)

    def descend(self) -> Iterator[tuple["Exchange", ...]]:
        """The chains of exchanges that begin with this one, the shortest first in each branch."""
        yield (self,)
        for following in self.follow:
            for chain in following.descend():
                yield (self, *chain)


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact as exchanges: it is told, asked for afterwards, and asked for before it was told."""

    name: str
    tell: Exchange
    ask: Exchange
    ask_untold: Exchange
    slots: frozenset[str]  # that are told


@dataclass(frozen=True, slots=True)
class Persona:
    file: Path
    words: Words
    intents: tuple[Exchange, ...]
    facts: tuple[Fact, ...]
    again: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    warnings: tuple[str, ...]  # what can hardly be learnt, one line each
    held_back: frozenset[str] = frozenset()  # letters of held-back texts, which are never said as known ones

    def openings(self) -> list[Exchange]:
        """The exchanges with which a conversation may begin."""
        return [*self.intents, *(exchange for fact in self.facts for exchange in (fact.tell, fact.ask_untold))]

    def accepted(self, exchange: Exchange, said: Mapping[str, Word], message: str) -> list[str]:
        """Regular expressions for the letters of the exchange's answers, given the words that were said.

        What the user's message says may stand in place of the words of a slot that was not said.
        """
        words = fold(message).split()
        parts = {"".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, min(i + 5, len(words) + 1))}
        context = Context(self.words, said, exchange.drawable, "|".join(sorted(parts)))
        return [pattern(answer, context) for answer in exchange.answers]


def read_persona(file: Path) -> Persona:
    """The persona of a file or folder. Raises ValueError with file, place and remedy."""
    source = read_yaml(file, PersonaFile)
    try:
        return _Reader(file, source).persona()
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


class _Reader:
    def __init__(self, file: Path, source: PersonaFile) -> None:
        self.file, self.source = file, source
        self.words: Words = {name: _words(name, words) for name, words in source.slots.items()}
        self.parsed = dict[str, Node]()  # by their texts, which are read more than once
        self.users = frozenset[str]()  # the slots that users say by themselves, which answers do not draw
        self.warnings = list[str]()

    def persona(self) -> Persona:
        source = self.source
        for name, section in source.intents.items():
            self._find_users_slots(f"intents.{name}", section, frozenset())
        for name, fact in source.facts.items():
            self.users |= slots_of(self._parse(f"facts.{name}.tell", fact.tell.known + fact.tell.held_back))
        intents = tuple(
            self._exchange(f"intents.{name}", name, section, frozenset()) for name, section in source.intents.items()
        )
        facts = tuple(self._fact(name, section) for name, section in source.facts.items())
        warnings = tuple(dict.fromkeys(self.warnings))  # the question for a fact is read twice
        around = tuple(source.again), tuple(source.before), tuple(source.after)
        persona = Persona(self.file, self.words, intents, facts, *around, warnings)
        return replace(persona, held_back=self._compare(persona.openings()))

    def _find_users_slots(self, place: str, section: ExchangeSection, drawn: frozenset[str]) -> None:
        self.users |= slots_of(self._parse(f"{place}.known", section.known)) - drawn
        self.users |= slots_of(self._parse(f"{place}.held_back", section.held_back)) - drawn
        drawn |= slots_of(self._parse(f"{place}.answers", section.answers))
        for name, following in section.follow.items():
            self._find_users_slots(f"{place}.follow.{name}", following, drawn)

    def _fact(self, name: str, section: FactSection) -> Fact:
        place, path = f"facts.{name}", f"facts/{name}"
        tell = ExchangeSection(**dict(section.tell), answers=section.reply)
        ask, untold = (ExchangeSection(**dict(section.ask), answers=one) for one in (section.answers, section.unknown))
        told = self._exchange(f"{place}.tell", f"{path}/tell", tell, frozenset(), f"{place}.reply")
        certain = frozenset.intersection(*map(needed_slots, told.phrasings))
        return Fact(
            name,
            told,
            self._exchange(f"{place}.ask", f"{path}/asked", ask, certain, f"{place}.answers"),  # after it was told
            self._exchange(f"{place}.ask", f"{path}/ask", untold, frozenset(), f"{place}.unknown"),  # before that
            slots_of(told.phrasings),
        )

    def _exchange(
        self, place: str, path: str, section: ExchangeSection, certain: frozenset[str], answers_place: str = ""
    ) -> Exchange:
        known, held_back = (self._parse(f"{place}.{key}", getattr(section, key)) for key in ("known", "held_back"))
        answers_place = answers_place or f"{place}.answers"
        answers = self._parse(answers_place, section.answers)
        drawable = slots_of(answers) - self.users
        for text, phrasing in zip(section.known + section.held_back, known + held_back, strict=True):
            said = certain | needed_slots(phrasing)
            if not any(is_usable(answer, said | drawable) for answer in answers):
                missing = ", ".join(f"{{{slot}}}" for slot in sorted(slots_of(answers) - said - drawable))
                raise ValueError(
                    f"{answers_place}: after {text!r} none can be given, as {missing} may be unsaid: "
                    "add an answer without it, put it into [ ] or {slot|other words}, or use one that only answers say"
                )
        certain |= frozenset.intersection(*map(needed_slots, known + held_back))
        certain |= frozenset.intersection(*map(needed_slots, answers))
        follow = tuple(
            self._exchange(f"{place}.follow.{name}", f"{path}/{name}", following, certain)
            for name, following in section.follow.items()
        )
        number = sum(num_texts(node, {}) for node in known)
        if number < FEW_TEXTS:
            self.warnings.append(f"{place}.known: {number} of the {FEW_TEXTS} texts or more that a model learns from")
        return Exchange(path, section.weight, known, held_back, answers, drawable, follow)

    def _parse(self, place: str, sources: list[str]) -> tuple[Node, ...]:
        nodes = []
        for number, text in enumerate(sources, 1):
            try:
                node = self.parsed[text] = self.parsed.get(text) or _parse_text(text, self.words)
                nodes.append(node)
            except ValueError as error:
                raise ValueError(f"{place}.{number}: {text[:80]!r} {error}") from error
        return tuple(nodes)

    def _compare(self, exchanges: Iterable[Exchange]) -> frozenset[str]:
        """The letters of all held-back texts. Raises ValueError for texts of two that may come at the same place."""
        owners, wrong, held_back = dict[str, str](), list[str](), set[str]()
        for exchange in exchanges:
            for node in exchange.phrasings:
                few = num_texts(node, self.words) <= MAX_TEXTS_WITH_WORDS
                found = {letters(text): text for text in texts(node, self.words if few else {})}
                for key, text in found.items():
                    if (other := owners.setdefault(key, exchange.path)) != exchange.path:
                        wrong.append(f"{text.strip()!r} is a phrasing of {other} and of {exchange.path}")
                if node in exchange.held_back:
                    held_back |= found.keys()
            held_back |= self._compare(exchange.follow)
        if wrong:
            raise ValueError(f"{'; '.join(wrong[:3])}: change one of them, or the sense rate would be wrong")
        return frozenset(held_back)


def _parse_text(text: str, words: Words) -> Node:
    """The grammar of a text. Raises ValueError for one that is empty or too large."""
    node = parse(text, words)
    if (number := num_texts(node, {})) > MAX_TEXTS:
        raise ValueError(f"gives {number:,} texts, more than {MAX_TEXTS:,}: split it into several")
    if not all(map(letters, texts(node, {}))):
        raise ValueError("may be empty: remove an empty alternative, or add words")
    return node


def _words(name: str, entries: list[SlotWord]) -> list[Word | Node]:
    """The words of a slot, and grammars that stand for many. Raises ValueError with the place."""
    words = list[Word | Node]()
    for number, entry in enumerate(entries, 1):
        place = f"slots.{name}.{number}"
        if "word" not in entry:
            raise ValueError(f"{place}: {entry}: no form 'word': add it")
        for form, text in entry.items():
            if not letters(text):
                raise ValueError(f"{place}: {form}: {text!r} has neither letters nor digits: write a word")
        try:
            node = _parse_text(entry["word"], {}) if len(entry) == 1 else Text(entry["word"])
        except ValueError as error:
            raise ValueError(f"{place}: {entry['word']!r} {error}") from error
        word: Word | Node = entry if isinstance(node, Text) else node
        if word in words and isinstance(node, Text):
            raise ValueError(f"{place}: {entry['word']!r} occurs twice: remove one")
        words.append(word)
    return words
