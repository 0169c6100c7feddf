r"""The grammar of phrasings and answers, such as `my {pet} [{pet_name} ]is (ill|sick)`.

    (a|b)                    one of several
    [a]                      an optional part
    {pet}  {pet.many}        the word of a slot, or another form of it
    {pet.2}  {pet.2.many}    a second word of the slot, other than the first
    {pet_name|your {pet}}    the first option whose slots were all said before, or else the last option
    \x                       the character x itself

A slot that was said keeps its word, and others are drawn. An option is never chosen if it needs a slot that was not
said and must not be drawn.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from random import Random

from chatmill.talk.folding import letters

MAX_NESTING = 12
MAX_NUMBER = 9

Word = Mapping[str, str]  # a word and its forms: {"word": "dog", "many": "dogs"}

_TOKEN = re.compile(r"\\(.)|([(){}\[\]|])|([^\\(){}\[\]|]+)", re.DOTALL)
_REFERENCE = re.compile(r"([^\W\d]\w*)(?:\.(\d+))?(?:\.([^\W\d]\w*))?")
_CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Slot:
    """The word of a slot in one of its forms. The key is `pet`, or `pet.2` for a second word."""

    key: str
    form: str

    @property
    def name(self) -> str:
        return self.key.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Group:
    nodes: tuple["Node", ...]


class Parts(Group):
    """Nodes one after another."""


class Choice(Group):
    """One of several nodes, which are equally likely."""


class FirstSaid(Group):
    """The first of several nodes whose slots are bound, or else the last one."""

    def possible(self, said: Container[str], drawable: Container[str]) -> "list[Node]":
        """The nodes that may be said in an answer, which may have drawn some `drawable` slots before this place."""
        found = []
        for node in self.nodes[:-1]:
            keys = slots_of([node])
            if all(key in said or key in drawable for key in keys):
                found.append(node)
                if all(key in said for key in keys):
                    return found
        return [*found, self.nodes[-1]]

    def chosen(self, said: Container[str]) -> "Node":
        return next((node for node in self.nodes if all(key in said for key in slots_of([node]))), self.nodes[-1])


Node = Text | Slot | Parts | Choice | FirstSaid
Words = Mapping[str, Sequence[Word | Node]]  # by slot; a grammar without slots stands for all words that it gives


def slots_of(nodes: Iterable[Node]) -> frozenset[str]:
    found = set[str]()
    for node in nodes:
        match node:
            case Slot():
                found.add(node.key)
            case Group():
                found |= slots_of(node.nodes)
    return frozenset(found)


def needed_slots(node: Node) -> frozenset[str]:
    """The slots that every expansion of a node says."""
    match node:
        case Parts():
            return frozenset().union(*map(needed_slots, node.nodes))
        case Group():
            return frozenset.intersection(*map(needed_slots, node.nodes))
        case _:
            return slots_of([node])


def is_usable(node: Node, usable: Container[str]) -> bool:
    """Whether the node can be said where no other slots than these are bound or may be drawn."""
    match node:
        case Slot():
            return node.key in usable
        case Parts():
            return all(is_usable(part, usable) for part in node.nodes)
        case Choice():
            return any(is_usable(option, usable) for option in node.nodes)
        case FirstSaid():
            return is_usable(node.chosen(usable), usable)
        case _:
            return True


@dataclass(slots=True)
class Speaker:
    """One who says nodes: the words bound so far by slot, and the slots that may be drawn; None for all."""

    words: Words
    random: Random
    said: dict[str, Word] = field(default_factory=dict)
    drawable: frozenset[str] | None = None

    def say(self, node: Node) -> str:
        """The text of a node; words of slots that are not bound are drawn, and stay in `said`."""
        match node:
            case Text():
                return node.text
            case Slot():
                return self.word(node)[node.form]
            case Parts():
                return "".join([self.say(part) for part in node.nodes])
            case Choice():
                usable = [option for option in node.nodes if self.is_usable(option)]
                return self.say(usable[int(self.random.random() * len(usable))])
            case FirstSaid():
                return self.say(node.chosen(self.said))

    def is_usable(self, node: Node) -> bool:
        return self.drawable is None or is_usable(node, self.drawable | self.said.keys())

    def word(self, slot: Slot) -> Word:
        """The word of a slot, which is drawn if it is not bound; it differs from the slot's other words."""
        if slot.key not in self.said:
            others = [word for key, word in self.said.items() if key.partition(".")[0] == slot.name]
            self.said[slot.key] = draw_word(self.words[slot.name], others, self.random)
        return self.said[slot.key]


def draw_word(words: Sequence[Word | Node], others: Sequence[Word], random: Random) -> Word:
    """One of the words that is not in `others`; a node is expanded, and drawn again if it gives one of them."""
    left = [word for word in words if word not in others]
    while True:
        entry = random.choice(left)
        word = entry if isinstance(entry, Mapping) else {"word": Speaker({}, random).say(entry)}
        if word not in others:
            return word


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
        if mark == "{":
            return FirstSaid(nodes) if len(nodes) > 1 else nodes[0]
        choice = Choice(nodes) if len(nodes) > 1 else nodes[0]
        return Choice((choice, Text(""))) if mark == "[" else choice

    def _reference_or_text(self, start: int, end: int, options: list[list[Node]]) -> Node:
        """The slot that an option between braces names; after the first |, one that names none is grammar."""
        source = self.text[start:end]
        match = _REFERENCE.fullmatch(source)
        if match and match[1] in self.words:
            return self._slot(match[1], int(match[2] or 1), match[3] or "word")
        if len(options) > 1:
            return _joined(options[-1])  # the same text, parsed
        if "{" in source:
            raise ValueError(f"has braces in {{{source}}}: before a | stands the name of a slot; else write ( | )")
        known = ", ".join(list(self.words)[:8]) or "none"
        raise ValueError(f"has an unknown slot {{{source}}}: add it to slots, which has {known}")

    def _slot(self, name: str, number: int, form: str) -> Slot:
        words = self.words[name]
        if not 1 <= number <= MAX_NUMBER or (number > len(words) and all(isinstance(one, Mapping) for one in words)):
            raise ValueError(f"needs {number} words of the slot {name}, which has {len(words)}: add some")
        for word in words:
            if form != "word" and not (isinstance(word, Mapping) and form in word):
                shown = word["word"] if isinstance(word, Mapping) else next(texts(word, {}))
                raise ValueError(
                    f"has an unknown form {{{name}.{form}}}: add {form!r} to the word {shown!r} of slots.{name}"
                )
        return Slot(name if number == 1 else f"{name}.{number}", form)


def _joined(nodes: list[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else Parts(tuple(nodes)) if nodes else Text("")


def texts(node: Node, words: Words) -> Iterator[str]:
    """All texts that a node gives; the slots that are not in `words` stand for themselves."""
    match node:
        case Text():
            yield node.text
        case Slot():
            known = words.get(node.name, [{node.form: f" slot {node.key} {node.form} "}])
            yield from (word[node.form] for word in known if isinstance(word, Mapping))
        case Parts():
            yield from map("".join, product(*(list(texts(part, words)) for part in node.nodes)))
        case Group():
            for option in node.nodes:
                yield from texts(option, words)


def num_texts(node: Node, words: Words) -> int:
    """How many texts `texts` gives, those that occur twice included."""
    match node:
        case Parts():
            return prod(num_texts(part, words) for part in node.nodes)
        case Group():
            return sum(num_texts(option, words) for option in node.nodes)
        case Slot():
            return len(words.get(node.name, [""]))
        case _:
            return 1


@dataclass(frozen=True, slots=True)
class Context:
    """What was said before an answer, which slots it may draw, and a pattern for parts of the user's message."""

    words: Words
    said: Mapping[str, Word]
    drawable: frozenset[str]
    echo: str


def pattern(node: Node, context: Context) -> str:
    """A regular expression for the `letters` of all texts that a node gives, and of some more.

    `context.echo`, parts of the user's message, may stand in place of a last option without slots.
    """
    match node:
        case Text():
            return re.escape(letters(node.text))
        case Slot() if node.key in context.said:
            return re.escape(letters(context.said[node.key][node.form]))
        case Slot() if node.key in context.drawable:
            options = [
                re.escape(letters(word[node.form])) if isinstance(word, Mapping) else pattern(word, context)
                for word in context.words[node.name]
            ]
            return f"(?:{'|'.join(options)})"
        case Slot():
            return "(?!)"  # matches nothing
        case Parts():
            return "".join(pattern(part, context) for part in node.nodes)
        case Choice():
            return f"(?:{'|'.join(pattern(option, context) for option in node.nodes)})"
        case FirstSaid():
            possible = node.possible(context.said, context.drawable)
            options = [pattern(one, context) for one in possible]
            return f"(?:{'|'.join(options)}{'' if slots_of(possible[-1:]) else '|' + context.echo})"
