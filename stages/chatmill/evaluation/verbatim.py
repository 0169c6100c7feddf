"""Copying told apart from talking: how much of the answers stands in the training data.

Texts are compared by their words in lower case. An answer is verbatim if an answer or a document of the training data
has the same words; its copied stretch is the longest run of its words that stands anywhere in one of them.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chatmill.conversation import is_document, parse, text_hash, unescape
from chatmill.evaluation.intervals import share
from chatmill.record_files import read_records

MAX_TRAIN_BYTES = 200_000_000  # that are searched, of a larger file a sample by hash

Words = tuple[str, ...]
_WORD = re.compile(r"\w+")


class Stretches:
    """Finds the longest runs of words of some texts in others that are read one after another.

    It is the suffix automaton of the texts (Blumer et al. 1985), so that time is linear in all of them, and memory in
    the words of the texts that it is made of alone.
    """

    def __init__(self, texts: Sequence[Words]) -> None:
        self._next: list[dict[str | int, int]] = [{}]
        self._link, self._length = [-1], [0]
        self._found = [0]  # for each state the words of its longest string that was found
        self._ends: list[list[int]] = []  # of each text the states of its prefixes
        last = 0
        for number, text in enumerate(texts):
            states = []
            for word in text:
                last = self._extend(last, word)
                states.append(last)
            self._ends.append(states)
            last = self._extend(last, number)  # which no text contains

    def search(self, text: Words) -> None:
        state = length = 0
        for word in text:
            while state and word not in self._next[state]:
                state = self._link[state]
                length = self._length[state]
            if word in self._next[state]:
                state, length = self._next[state][word], length + 1
                self._found[state] = max(self._found[state], length)

    def longest(self) -> list[int]:
        """The words of the longest run of each text that was found so far."""
        found = list(self._found)
        for state in sorted(range(1, len(found)), key=self._length.__getitem__, reverse=True):
            link = self._link[state]
            if found[state] and link:  # the strings of the linked state are suffixes of what was found
                found[link] = self._length[link]
        for state in sorted(range(1, len(found)), key=self._length.__getitem__):
            found[state] = found[state] or found[self._link[state]]
        return [max((found[state] for state in states), default=0) for states in self._ends]

    def _extend(self, last: int, word: str | int) -> int:
        """Append a word to the text that ends in a state: the state of the longer text."""
        state = self._add({}, self._length[last] + 1)
        while last >= 0 and word not in self._next[last]:
            self._next[last][word] = state
            last = self._link[last]
        if last >= 0:
            self._link[state] = self._split(last, word)
        else:
            self._link[state] = 0
        return state

    def _split(self, last: int, word: str | int) -> int:
        """The state after a word in another one, divided where it also stands for longer strings."""
        other = self._next[last][word]
        if self._length[other] == self._length[last] + 1:
            return other
        clone = self._add(dict(self._next[other]), self._length[last] + 1)
        self._link[clone], self._link[other] = self._link[other], clone
        while last >= 0 and self._next[last].get(word) == other:
            self._next[last][word] = clone
            last = self._link[last]
        return clone

    def _add(self, following: dict[str | int, int], length: int) -> int:
        self._next.append(following)
        self._link.append(0)
        self._length.append(length)
        self._found.append(0)
        return len(self._next) - 1


def words(text: str) -> Words:
    """The words of a text in lower case, without punctuation."""
    return tuple(_WORD.findall(text.lower()))


def sampled_share(train: Path) -> float:
    """The share of a training file that is searched."""
    return min(1.0, MAX_TRAIN_BYTES / max(1, train.stat().st_size))


def sampled_answers(train: Path) -> Iterator[str]:
    """The answers and documents of a training file; of one above MAX_TRAIN_BYTES, of a sample by the hash of texts."""
    limit = sampled_share(train) * 2**64
    for record in read_records(train):
        if text_hash(record.text) >= limit:
            continue
        if is_document(record.text):
            yield unescape(record.text)
        else:
            yield from (message.text for message in parse(record.text) if message.role == "assistant")


def measure_copying(answers: list[str], true_answers: list[str], train: Path) -> dict[str, Any]:
    """The section verbatim of the metrics: how much of the answers stands in the training data, and of true ones.

    The training data are read once. A text without words is no copy.
    """
    own = [words(text) for text in (*answers, *true_answers)]
    wanted, found = set(own) - {()}, set()
    automaton = Stretches(own)
    for text in sampled_answers(train):
        given = words(text)
        automaton.search(given)
        if given in wanted:
            found.add(given)
    verbatim, stretches = [text in found for text in own], automaton.longest()
    model, true = (
        {
            "share": share(verbatim[part]),
            "longest_mean": float(np.mean(stretches[part])) if stretches[part] else None,
            "longest_max": max(stretches[part], default=None),
        }
        for part in (slice(len(answers)), slice(len(answers), None))
    )
    return {**model, "true": true, "train_share": sampled_share(train)}
