"""Finds phrasings that give the same text where they must not, as the sense rate would then be wrong.

All phrasings are read at once, letter by letter, as one automaton whose states are places in their texts. Only
beginnings that conflicting phrasings share are followed, so that all other expansions are never listed.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from chatmill.talk.grammar import Choice, FirstSaid, Node, Parts, Slot, Text, Words, fold

MAX_STEPS = 2_000_000  # states that are looked at; coincidences of a larger file may stay unfound


class Owner(NamedTuple):
    """Where a phrasing stands: the exchanges of a `group` may come at the same place of a conversation."""

    group: str
    exchange: str
    side: str  # known or held_back

    def __str__(self) -> str:
        return f"{self.exchange} ({self.side})"


class _Rest:
    """A node and what comes after it; its pieces are made when they are reached."""

    def __init__(self, node: Node | None, owner: Owner, words: Words, after: "_Rest | None" = None) -> None:
        self._node, self._owner, self._words, self._after = node, owner, words, after

    @cached_property
    def pieces(self) -> "tuple[_Piece, ...]":
        """The pieces with which the node may begin; an empty one at the end of a phrasing."""
        if self._node is None or self._after is None:
            return (_Piece("", self._owner, self),)
        return tuple(self._begin(self._node, self._after))

    def _begin(self, node: Node, after: "_Rest") -> "Iterator[_Piece]":
        match node:
            case Text():
                text = fold(node.text)
                yield from (_Piece(text, self._owner, after),) if text else after.pieces
            case Slot():
                texts = {fold(word[node.form]): None for word in self._words[node.key.partition(".")[0]]}
                yield from (_Piece(text, self._owner, after) for text in texts)
            case Parts():
                for part in reversed(node.nodes[1:]):
                    after = _Rest(part, self._owner, self._words, after)
                yield from self._begin(node.nodes[0], after)
            case Choice() | FirstSaid():
                yield from chain.from_iterable(self._begin(option, after) for option in node.nodes)


class _Piece:
    """A part of a text, and what comes after it; the last piece of a phrasing is empty."""

    __slots__ = ("after", "owner", "text")

    def __init__(self, text: str, owner: Owner, after: _Rest) -> None:
        self.text, self.owner, self.after = text, owner, after


_State = tuple[_Piece, int]  # a piece and the letters of it that were read


def coincidences(phrasings: Iterable[tuple[Owner, Node]], words: Words) -> Iterator[tuple[str, Owner, Owner]]:
    """Texts that two phrasings give of which one is known and one held back, or of two exchanges of a group."""
    start = [piece for owner, node in phrasings for piece in _whole(node, owner, words).pieces]
    waiting, seen, steps = [(" ", frozenset(_enter(start, after_blank=True)))], set[frozenset[_State]](), 0
    while waiting and steps < MAX_STEPS:
        read, states = waiting.pop()
        if states in seen or not _conflict({piece.owner for piece, _ in states}):
            continue
        seen.add(states)
        steps += len(states)
        if pair := _conflict(sorted({piece.owner for piece, _ in states if not piece.text})):
            yield read.strip(), *pair
        waiting += sorted(_read_letter(read, states), reverse=True, key=itemgetter(0))


def _read_letter(read: str, states: Iterable[_State]) -> Iterator[tuple[str, frozenset[_State]]]:
    by_letter = defaultdict[str, set[_State]](set)
    for piece, position in states:
        if position + 1 < len(piece.text):
            by_letter[piece.text[position]].add((piece, position + 1))
        elif piece.text:
            letter = piece.text[position]
            by_letter[letter].update(_enter(piece.after.pieces, after_blank=letter == " "))
    return ((read + letter, frozenset(after)) for letter, after in by_letter.items())


def _whole(node: Node, owner: Owner, words: Words) -> _Rest:
    return _Rest(node, owner, words, _Rest(Text(" "), owner, words, _Rest(None, owner, words)))


def _conflict(owners: Iterable[Owner]) -> tuple[Owner, Owner] | None:
    by_group, by_side = dict[str, Owner](), dict[str, Owner]()
    for owner in owners:
        first = by_group.setdefault(owner.group, owner)
        if first.exchange != owner.exchange:
            return first, owner
        by_side.setdefault(owner.side, owner)
        if len(by_side) > 1:
            return by_side["known"], by_side["held_back"]
    return None


def _enter(pieces: Iterable[_Piece], *, after_blank: bool) -> Iterator[_State]:
    for piece in pieces:
        position = int(after_blank and piece.text.startswith(" "))
        if position and position == len(piece.text):
            yield from _enter(piece.after.pieces, after_blank=True)
        else:
            yield piece, position
