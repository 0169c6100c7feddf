r"""The grammar of phrasings and answers, such as `my {pet} [{pet_name} ]is (ill|sick)`.

    (a|b)                    one of several
    [a]                      an optional part
    {pet}  {pet.many}        the word of a slot, or another form of it
    {pet.2}  {pet.2.many}    a second word of the slot, other than the first
    {pet_name|your {pet}}    the first of these whose slots were said before, or else the last one
    \x                       the character x itself

A slot that is bound keeps its word. What needs a slot that is neither bound nor may be drawn is not chosen.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random

MAX_NESTING = 12
MAX_NUMBER = 9

Word = Mapping[str, str]  # a word and its forms: {"word": "dog", "many": "dogs"}
Words = Mapping[str, Sequence[Word]]  # by slot

_TOKEN = re.compile(r"\\(.)|([(){}\[\]|])|([^\\(){}\[\]|]+)", re.DOTALL)
_REFERENCE = re.compile(r"([^\W\d]\w*)(?:\.(\d+))?(?:\.([^\W\d]\w*))?")
_CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclass(slots=True)
class Speaker:
    """One who expands a grammar: the words bound so far by slot, and the slots that may be drawn; None for all."""

    words: Words
    random: Random
    said: dict[str, Word] = field(default_factory=dict)
    drawable: frozenset[str] | None = None

    def word(self, key: str) -> Word:
        """The word of a slot, which is drawn if it is not bound; it differs from the slot's other words."""
        if key not in self.said:
            name = key.partition(".")[0]
            others = [self.said[other] for other in _siblings(name) if other in self.said]
            self.said[key] = self.random.choice([word for word in self.words[name] if word not in others])
        return self.said[key]


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    slots: frozenset[str] = frozenset()

    def expand(self, speaker: Speaker) -> str:
        return self.text

    def is_usable(self, said: Mapping[str, Word], drawable: frozenset[str] | None) -> bool:
        """Whether all slots that it needs are bound or may be drawn; so for the other nodes."""
        return True


@dataclass(frozen=True, slots=True)
class Slot:
    """The word of a slot in one of its forms. The key is `pet`, or `pet.2` for a second word."""

    key: str
    form: str
    slots: frozenset[str]

    def expand(self, speaker: Speaker) -> str:
        return speaker.word(self.key)[self.form]

    def is_usable(self, said: Mapping[str, Word], drawable: frozenset[str] | None) -> bool:
        return drawable is None or self.key in said or self.key in drawable


@dataclass(frozen=True, slots=True)
class Parts:
    """Nodes after one another."""

    nodes: tuple["Node", ...]
    slots: frozenset[str]

    def expand(self, speaker: Speaker) -> str:
        return "".join([node.expand(speaker) for node in self.nodes])

    def is_usable(self, said: Mapping[str, Word], drawable: frozenset[str] | None) -> bool:
        return not self.slots or all(node.is_usable(said, drawable) for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several nodes, which are equally likely."""

    nodes: tuple["Node", ...]
    slots: frozenset[str]

    def expand(self, speaker: Speaker) -> str:
        nodes: Sequence[Node] = self.nodes
        if self.slots and speaker.drawable is not None:
            nodes = [node for node in nodes if node.is_usable(speaker.said, speaker.drawable)]
        return nodes[int(speaker.random.random() * len(nodes))].expand(speaker)

    def is_usable(self, said: Mapping[str, Word], drawable: frozenset[str] | None) -> bool:
        return not self.slots or any(node.is_usable(said, drawable) for node in self.nodes)


@dataclass(frozen=True, slots=True)
class FirstSaid:
    """The first of several nodes whose slots are bound, or else the last one."""

    nodes: tuple["Node", ...]
    slots: frozenset[str]

    def chosen(self, said: Mapping[str, Word]) -> "Node":
        return next((node for node in self.nodes if all(key in said for key in node.slots)), self.nodes[-1])

    def expand(self, speaker: Speaker) -> str:
        return self.chosen(speaker.said).expand(speaker)

    def is_usable(self, said: Mapping[str, Word], drawable: frozenset[str] | None) -> bool:
        return self.chosen(said).is_usable(said, drawable)


Node = Text | Slot | Parts | Choice | FirstSaid


def needed_slots(node: Node) -> frozenset[str]:
    """The slots that every expansion of a node says."""
    match node:
        case Parts():
            return frozenset().union(*map(needed_slots, node.nodes))
        case Choice() | FirstSaid():
            return frozenset.intersection(*map(needed_slots, node.nodes))
        case _:
            return node.slots


def parse(text: str, words: Words) -> Node:
    """The tree of a phrasing or an answer. Raises ValueError with the remedy for what is not of the grammar."""
    return _Parser(text, words).parse()


class _Parser:
    def __init__(self, text: str, words: Words) -> None:
        self.text, self.words, self.position = text, words, 0

    def parse(self) -> Node:
        nodes = self._alternatives("", 0)
        if len(nodes) > 1:
            raise ValueError("has a | outside of brackets: put the alternatives into ( ), or write \\|")
        return nodes[0]

    def _alternatives(self, closing: str, depth: int) -> list[Node]:
        if depth > MAX_NESTING:
            raise ValueError(f"has brackets more than {MAX_NESTING} deep: split it into several")
        options: list[list[Node]] = [[]]
        opened = start = self.position
        while match := _TOKEN.match(self.text, self.position):
            self.position = match.end()
            escaped, mark, plain = match.groups()
            if mark is None:
                options[-1].append(Text(escaped or plain))
            elif mark in _CLOSING:
                options[-1].append(self._bracket(mark, depth))
            elif mark == "|" or mark == closing:
                if closing == "}":
                    options[-1] = [self._reference_or_text(start, match.start(), options)]
                if mark == closing:
                    return list(map(_joined, options))
                start = self.position
                options.append([])
            else:
                raise ValueError(f"has {mark!r} at character {match.start() + 1} without its opening bracket")
        if self.position < len(self.text):
            raise ValueError("ends with a backslash: write \\\\ for the character itself")
        if closing:
            raise ValueError(f"has a bracket at character {opened} that is not closed: add {closing!r}")
        return list(map(_joined, options))

    def _bracket(self, mark: str, depth: int) -> Node:
        nodes = tuple(self._alternatives(_CLOSING[mark], depth + 1))
        slots = frozenset[str]().union(*(node.slots for node in nodes))
        if mark == "{":
            return FirstSaid(nodes, slots) if len(nodes) > 1 else nodes[0]
        choice = Choice(nodes, slots) if len(nodes) > 1 else nodes[0]
        return Choice((choice, Text("")), slots) if mark == "[" else choice

    def _reference_or_text(self, start: int, end: int, options: list[list[Node]]) -> Node:
        """The slot that the text between braces names; after the first |, any other text is read as grammar."""
        source = self.text[start:end]
        match = _REFERENCE.fullmatch(source)
        if match and match[1] in self.words:
            return self._slot(match[1], int(match[2] or 1), match[3] or "word")
        if len(options) > 1:
            return _joined(options[-1])
        known = ", ".join(list(self.words)[:8])
        raise ValueError(f"has an unknown slot {{{source}}}: add it to slots, which has {known or 'none'}")

    def _slot(self, name: str, number: int, form: str) -> Slot:
        words = self.words[name]
        if not 1 <= number <= min(len(words), MAX_NUMBER):
            raise ValueError(f"needs {number} words of the slot {name}, which has {len(words)}: add some")
        for word in words:
            if form not in word:
                raise ValueError(
                    f"has an unknown form {{{name}.{form}}}: add {form!r} to the word {word['word']!r} of slots.{name}"
                )
        key = name if number == 1 else f"{name}.{number}"
        return Slot(key, form, frozenset((key,)))


def _joined(nodes: list[Node]) -> Node:
    if not nodes:
        return Text("")
    return nodes[0] if len(nodes) == 1 else Parts(tuple(nodes), frozenset().union(*(node.slots for node in nodes)))


@lru_cache(maxsize=1024)  # a key is made for every word that is drawn
def _siblings(name: str) -> tuple[str, ...]:
    return (name, *(f"{name}.{number}" for number in range(2, MAX_NUMBER + 1)))


# Tells whether a text is an expansion of a grammar; case, punctuation and blanks do not matter.

_APOSTROPHES = re.compile("['\u2019]")
_BLANKS = re.compile(r"[\W_]+")

State = tuple[int, frozenset[tuple[str, int]]]  # the characters that were read, and the words that were drawn


def fold(text: str) -> str:
    """The words of a text in lower case, without apostrophes, with one blank in place of all else between them.

    `fold(a + b)` differs from `fold(a) + fold(b)` at most by a repeated blank.
    """
    return _BLANKS.sub(" ", _APOSTROPHES.sub("", text.casefold()))


def may_be_empty(node: Node) -> bool:
    """Whether an expansion of the node has no words."""
    match node:
        case Text():
            return not fold(node.text).strip()
        case Slot():
            return False
        case Parts():
            return all(map(may_be_empty, node.nodes))
        case Choice() | FirstSaid():
            return any(map(may_be_empty, node.nodes))


class Matcher:
    """Compares texts with grammars whose slots in `said` are bound; other slots in `drawable` take any of their words.

    Reads a text once with the set of all states that it may be in, so that no grammar takes exponential time.
    """

    def __init__(self, words: Words, said: Mapping[str, Word], drawable: frozenset[str] | None = frozenset()) -> None:
        self._words, self._said, self._drawable = words, said, drawable

    def matches(self, node: Node, text: str) -> bool:
        words = fold(text).strip()
        folded = f" {words} " if words else " "
        states = self._read(node, folded, {(1, frozenset())})
        return any(_read_text(" ", folded, position) == len(folded) for position, _ in states)

    def _read(self, node: Node, text: str, states: set[State]) -> set[State]:
        match node:
            case Text():
                piece = fold(node.text)
                return {(end, drawn) for at, drawn in states if (end := _read_text(piece, text, at)) is not None}
            case Slot():
                return {state for start in states for state in self._read_slot(node, text, start)}
            case Parts():
                for part in node.nodes:
                    states = self._read(part, text, states)
                return states
            case Choice():
                return set().union(*(self._read(option, text, states) for option in node.nodes))
            case FirstSaid():
                return set().union(*(self._read(node.chosen(self._bound(s[1])), text, {s}) for s in states))

    def _read_slot(self, slot: Slot, text: str, state: State) -> set[State]:
        position, drawn = state
        bound, name = self._bound(drawn), slot.key.partition(".")[0]
        if slot.key in bound:
            end = _read_text(fold(bound[slot.key][slot.form]), text, position)
            return set() if end is None else {(end, drawn)}
        if self._drawable is not None and slot.key not in self._drawable:
            return set()
        others = [word for key, word in bound.items() if key.partition(".")[0] == name]
        return {
            (end, drawn | {(slot.key, index)})
            for index, word in enumerate(self._words[name])
            if word not in others and (end := _read_text(fold(word[slot.form]), text, position)) is not None
        }

    def _bound(self, drawn: frozenset[tuple[str, int]]) -> Mapping[str, Word]:
        words = self._words
        return {**self._said, **{key: words[key.partition(".")[0]][index] for key, index in drawn}}


def _read_text(piece: str, text: str, position: int) -> int | None:
    """The end of a folded piece at a position of the folded text; a blank after a blank is the same one."""
    if piece.startswith(" ") and text[position - 1] == " ":
        piece = piece[1:]
    return position + len(piece) if text.startswith(piece, position) else None
