"""Noise in conversations and documents: typos, unusual case, and invented words.

The noise is deterministic: it depends on each one's own text alone.
"""

import hashlib
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Literal, get_args

from chatmill.conversation import Message, Part, Record, escape, is_document, parse, render, unescape

Noise = Literal["typos", "case", "rare_words"]
NOISE_KINDS: tuple[Noise, ...] = get_args(Noise)
TYPOS, CASES, RARE = 0.1, 0.15, 0.15  # shares of the words

_WORD = re.compile(r"[^\W\d_]{3,}")
_ONSETS = (
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gl",
    "h",
    "k",
    "kl",
    "l",
    "m",
    "n",
    "p",
    "pr",
    "r",
    "s",
    "st",
    "t",
    "v",
    "z",
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ou")
_ENDS = ("", "l", "m", "n", "r", "s", "x", "rk", "nd")

Change = Callable[[str], str]
"""From a word to its replacement."""


def add_noise(records: Iterable[Record], kind: Noise) -> list[Record]:
    """The records with some words of their text changed; tool calls and their outputs stay."""
    return [replace(record, text=_noisy(record.text, _CHANGES[kind])) for record in records]


def _noisy(text: str, changes: Callable[[random.Random], Change]) -> str:
    change = changes(random.Random(hashlib.sha256(text.encode()).digest()))
    if is_document(text):
        return escape(_changed(Part("text", unescape(text)), change).text)
    return render(Message(one.role, tuple(_changed(part, change) for part in one.parts)) for one in parse(text))


def _changed(part: Part, change: Change) -> Part:
    if part.kind != "text":
        return part
    return replace(part, text=_WORD.sub(lambda word: change(word[0]), part.text))


def _typos(rng: random.Random) -> Change:
    """In one word of ten, two adjacent letters are swapped, or one letter is left out or doubled."""

    def change(word: str) -> str:
        if rng.random() >= TYPOS:
            return word
        i = rng.randrange(len(word) - 1)
        slips = (word[:i] + word[i + 1] + word[i] + word[i + 2 :], word[:i] + word[i + 1 :], word[: i + 1] + word[i:])
        return rng.choice(slips)

    return change


def _case(rng: random.Random) -> Change:
    """Some words are written in upper case, capitalised, or with the case of each letter swapped."""

    def change(word: str) -> str:
        return rng.choice((word.upper(), word.capitalize(), word.swapcase())) if rng.random() < CASES else word

    return change


def _rare_words(rng: random.Random) -> Change:
    replaced: dict[str, str] = {}

    def change(word: str) -> str:
        known = word.lower()
        if known not in replaced:
            replaced[known] = _invented(rng) if rng.random() < RARE else known
        if replaced[known] == known:
            return word
        return replaced[known].capitalize() if word[0].isupper() else replaced[known]

    return change


def _invented(rng: random.Random) -> str:
    syllables = (rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.choice((2, 3))))
    return "".join(syllables) + rng.choice(_ENDS)


_CHANGES: dict[Noise, Callable[[random.Random], Change]] = {
    "typos": _typos,
    "case": _case,
    "rare_words": _rare_words,
}
