"""Tells whether a text is an expansion of a grammar; case, punctuation and blanks do not matter."""

import re
from collections.abc import Mapping

from chatmill.talk.grammar import Choice, FirstSaid, Node, Parts, Slot, Text, Word, Words

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
        """Whether the text is an expansion of the grammar."""
        words = fold(text).strip()
        folded = f" {words} " if words else " "
        states = self._read(node, folded, {(1, frozenset())})
        return any(_read_text(" ", folded, position) == len(folded) for position, _ in states)

    def _read(self, node: Node, text: str, states: set[State]) -> set[State]:
        """The states after the node."""
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
