"""Reads a persona: a YAML file of intents and facts, from which conversations are generated and replies are judged.

Errors are of one line, which names the place in the file.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from chatmill.talk.collisions import Owner, coincidences
from chatmill.talk.grammar import Matcher, Node, Word, Words, fold, may_be_empty, needed_slots, parse

_REMEDIES = {
    "missing": ": add it",
    "too_short": ": add some",
    "extra_forbidden": ": remove it, or correct its name",
}


class StrictModel(BaseModel):
    """A section of a file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


_Model = TypeVar("_Model", bound=BaseModel)
_Loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # libyaml is faster, and reads [why?] as a list of one text


def read_yaml(file: Path, model: type[_Model]) -> _Model:
    """The content of a file, with all scalars as text. Raises ValueError with file, place and remedy."""
    try:
        return model.model_validate(yaml.load(file.read_bytes(), Loader=_Loader))
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{file}: not YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ValueError(f"{file}: {place}: {first['msg']}{_REMEDIES.get(first['type'], '')}") from error


Texts = Annotated[list[str], Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^\w[\w -]*$")]
SlotName = Annotated[str, Field(pattern=r"^[^\W\d]\w*$")]


def _with_form(word: Any) -> Any:
    return {"word": word} if isinstance(word, str) else word


def _numbered(entries: Any) -> Any:
    """A list as a map with the keys 1, 2, …"""
    return {str(number): entry for number, entry in enumerate(entries, 1)} if isinstance(entries, list) else entries


SlotWord = Annotated[dict[SlotName, str], BeforeValidator(_with_form)]


class ExchangeSection(StrictModel):
    """What a user says in many ways, what is answered, and the exchanges that may come next."""

    weight: Annotated[float, Field(gt=0, le=1_000_000)] = 1
    known: Texts
    held_back: Texts
    answers: Texts
    follow: Annotated[dict[Name, "ExchangeSection"], BeforeValidator(_numbered)] = Field({})


class Phrasings(StrictModel):
    known: Texts
    held_back: Texts


class FactSection(StrictModel):
    """What a user tells, and asks for later; `unknown` are the answers before it was told."""

    tell: Phrasings
    reply: Texts
    ask: Phrasings
    answers: Texts
    unknown: Texts


class PersonaFile(StrictModel):
    """The content of the file. `again` are openings of a fact that is told anew."""

    slots: dict[SlotName, Annotated[list[SlotWord], Field(min_length=1)]] = Field({})
    intents: Annotated[dict[Name, ExchangeSection], Field(min_length=1)]
    facts: dict[Name, FactSection] = Field({})
    again: Texts = Field(["no, ", "sorry, ", "actually, "])


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
    """The content of the file, parsed and checked."""

    file: Path
    words: Words
    intents: tuple[Exchange, ...]
    facts: tuple[Fact, ...]
    again: tuple[str, ...]
    held_back: frozenset[str] = frozenset()  # folded texts that known phrasings give, too

    def openings(self) -> list[Exchange]:
        """The exchanges with which a conversation may begin."""
        return [*self.intents, *(exchange for fact in self.facts for exchange in (fact.tell, fact.ask_untold))]

    def exchanges(self) -> dict[str, Exchange]:
        """All exchanges by path, but for facts that are asked for after they were told."""
        return {chain[-1].path: chain[-1] for opening in self.openings() for chain in opening.descend()}

    def word(self, key: str, word: str) -> Word:
        """The word of a slot with its forms. Raises ValueError if the slot has none such."""
        for found in self.words.get(key.partition(".")[0], ()):
            if found["word"] == word:
                return found
        raise ValueError(f"{self.file}: slots: no word {word!r} of {key}: the data is of another version: prepare anew")

    def accepts(self, exchange: Exchange, said: Mapping[str, Word], reply: str) -> bool:
        """Whether a reply is one of the exchange's answers, given the words that were said."""
        matcher = Matcher(self.words, said, exchange.drawable)
        return any(matcher.matches(answer, reply) for answer in exchange.answers)


def slots_of(nodes: Iterable[Node]) -> frozenset[str]:
    return frozenset().union(*(node.slots for node in nodes))


def read_persona(file: Path) -> Persona:
    """The persona of a file. Raises ValueError with file, place and remedy."""
    source = read_yaml(file, PersonaFile)
    try:
        return _Reader(file, source).persona()
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


class _Reader:
    def __init__(self, file: Path, source: PersonaFile) -> None:
        self.file, self.source = file, source
        self.words: Words = source.slots
        self._parsed = dict[str, Node]()
        self.users = frozenset[str]()  # the slots that users say by themselves, which answers do not draw

    def persona(self) -> Persona:
        source = self.source
        for name, words in source.slots.items():
            _check_words(name, words)
        for name, section in source.intents.items():
            self._find_users_slots(f"intents.{name}", section, frozenset())
        for name, fact in source.facts.items():
            self.users |= slots_of(self._parse(f"facts.{name}.tell", fact.tell.known + fact.tell.held_back))
        intents = tuple(
            self._exchange(f"intents.{name}", name, section, frozenset()) for name, section in source.intents.items()
        )
        facts = tuple(self._fact(name, section) for name, section in source.facts.items())
        persona = Persona(self.file, self.words, intents, facts, tuple(source.again))
        return replace(persona, held_back=_known_and_held_back(persona))

    def _find_users_slots(self, place: str, section: ExchangeSection, drawn: frozenset[str]) -> None:
        self.users |= slots_of(self._parse(f"{place}.known", section.known)) - drawn
        self.users |= slots_of(self._parse(f"{place}.held_back", section.held_back)) - drawn
        drawn |= slots_of(self._parse(f"{place}.answers", section.answers))
        for name, following in section.follow.items():
            self._find_users_slots(f"{place}.follow.{name}", following, drawn)

    def _fact(self, name: str, section: FactSection) -> Fact:
        place, path = f"facts.{name}", f"facts/{name}"
        tell = _section(section.tell, section.reply)
        ask, untold = _section(section.ask, section.answers), _section(section.ask, section.unknown)
        told = self._exchange(f"{place}.tell", f"{path}/tell", tell, frozenset(), f"{place}.reply")
        certain = frozenset.intersection(*map(needed_slots, told.phrasings))
        return Fact(
            name,
            told,
            self._exchange(f"{place}.ask", f"{path}/asked", ask, certain, f"{place}.answers"),
            self._exchange(f"{place}.ask", f"{path}/ask", untold, frozenset(), f"{place}.unknown"),
            slots_of(told.phrasings),
        )

    def _exchange(
        self, place: str, path: str, section: ExchangeSection, certain: frozenset[str], answers_place: str = ""
    ) -> Exchange:
        known, held_back = (self._with_words(f"{place}.{key}", getattr(section, key)) for key in ("known", "held_back"))
        answers_place = answers_place or f"{place}.answers"
        answers = self._with_words(answers_place, section.answers)
        drawable = slots_of(answers) - self.users
        texts = section.known + section.held_back
        for text, phrasing in zip(texts, known + held_back, strict=True):
            self._check_answered(answers_place, text, answers, certain | needed_slots(phrasing), drawable)
        certain |= frozenset.intersection(*map(needed_slots, known + held_back))
        certain |= frozenset.intersection(*map(needed_slots, answers))
        follow = tuple(
            self._exchange(f"{place}.follow.{name}", f"{path}/{name}", following, certain)
            for name, following in section.follow.items()
        )
        return Exchange(path, section.weight, known, held_back, answers, drawable, follow)

    def _check_answered(
        self, place: str, text: str, answers: tuple[Node, ...], said: frozenset[str], drawable: frozenset[str]
    ) -> None:
        """Raise ValueError unless one of the answers can be given where no more than these slots were said."""
        if any(answer.is_usable({key: {} for key in said}, drawable) for answer in answers):
            return
        missing = ", ".join(f"{{{slot}}}" for slot in sorted(slots_of(answers) - said - drawable))
        raise ValueError(
            f"{place}: after {text!r} none can be given, as {missing} may be unsaid: "
            "add an answer without it, put it into [ ] or {slot|other words}, or use a slot that only answers say"
        )

    def _with_words(self, place: str, texts: list[str]) -> tuple[Node, ...]:
        nodes = self._parse(place, texts)
        for number, node in enumerate(nodes, 1):
            if may_be_empty(node):
                raise ValueError(f"{place}.{number}: may be empty: remove an empty alternative, or add words")
        return nodes

    def _parse(self, place: str, texts: list[str]) -> tuple[Node, ...]:
        for number, text in enumerate(texts, 1):
            try:
                if text not in self._parsed:
                    self._parsed[text] = parse(text, self.words)
            except ValueError as error:
                raise ValueError(f"{place}.{number}: {text[:80]!r} {error}") from error
        return tuple(self._parsed[text] for text in texts)


def _known_and_held_back(persona: Persona) -> frozenset[str]:
    """The folded texts that a known and a held-back phrasing give.

    Raises ValueError for two exchanges that may come at the same place and give the same text.
    """
    found = list(coincidences(_owned("", persona.openings()), persona.words))
    wrong = [
        f"{text!r} is a phrasing of {one} and of {other}"
        for text, one, other in found
        if one.group == other.group and one.exchange != other.exchange
    ]
    if wrong:
        raise ValueError(f"{'; '.join(wrong[:3])}: change one of them, or the sense rate would be wrong")
    return frozenset(text for text, _, _ in found)


def _owned(group: str, exchanges: Iterable[Exchange]) -> Iterator[tuple[Owner, Node]]:
    for exchange in exchanges:
        yield from ((Owner(group, exchange.path, "known"), node) for node in exchange.known)
        yield from ((Owner(group, exchange.path, "held_back"), node) for node in exchange.held_back)
        yield from _owned(exchange.path, exchange.follow)


def _section(phrasings: Phrasings, answers: list[str]) -> ExchangeSection:
    return ExchangeSection(known=phrasings.known, held_back=phrasings.held_back, answers=answers)


def _check_words(name: str, words: list[dict[str, str]]) -> None:
    seen = set()
    for number, word in enumerate(words, 1):
        place = f"slots.{name}.{number}"
        if "word" not in word:
            raise ValueError(f"{place}: {word}: no form 'word': add it")
        for form, text in word.items():
            if not fold(text).strip():
                raise ValueError(f"{place}: {form}: {text!r} has neither letters nor digits: write a word")
        if word["word"] in seen:
            raise ValueError(f"{place}: {word['word']!r} occurs twice: remove one")
        seen.add(word["word"])
