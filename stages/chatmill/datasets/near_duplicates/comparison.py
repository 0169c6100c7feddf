"""Decides whether two conversations say the same, by their words.

Case, spaces and punctuation make no difference. Words are critical if a single one may turn the meaning: numbers,
names, negations, symbols, and all words of scripts without capital letters, where names cannot be told.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from enum import IntEnum
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from chatmill.datasets.near_duplicates.critical_words import ALTERNATIVES, NEGATIONS, NO_NAMES, NUMBER_WORDS

MAX_CHANGE = 0.15  # of the words of a message
MIN_ANSWER = 10  # words of an answer that may change
MIN_PART, MIN_SHARE = 8, 0.2  # words of a part, and its share of the whole's
MIN_CUT = 4  # words that are missing at the end of a truncated answer

_MESSAGE = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", re.DOTALL)
_DIGITS = re.compile(r"\d+")
_NOT = re.compile(r"n? ?['’] ?t\b", re.IGNORECASE)
_TOKEN = re.compile(
    r"\d+(?:[.,:]\d+)+|\w+(?:['’]\w+)*|[+*/=<>%$€£¥#^°×÷−√∞≤≥≠≈±~&@|\\]"
    r"|-(?=\d)|\((?=\d)|(?<=\d)[!)]|(?<!\w)!(?=[\w(])"
)
_UNCASED = re.compile("[\u0530-\U0010ffff]")  # from Armenian on; Latin, Greek and Cyrillic come before
_OPENING = re.compile(r"(?:^|[.!?:…\n])[\s\"'“”‘’(*_#>-]*$")
_NO_SYMBOLS = frozenset("aiunrdmst")  # letters that are words or ends of short forms; others are options and variables
_APART = ("un", "in", "im", "ir", "il", "dis", "non", "anti", "mis")


class Relation(IntEnum):
    """How a text is related to another one."""

    OTHER = 0
    SAME = 1
    PART = 2  # all its messages are messages of the other
    WHOLE = 3


class ComparedMessage(NamedTuple):
    """A message, and its words in lower case."""

    role: str
    text: str
    words: list[str]


class ComparedText:
    """A rendered conversation and its words, found when they are needed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.digits = "|".join(["", *_DIGITS.findall(text), ""])

    @cached_property
    def messages(self) -> list[ComparedMessage]:
        return [
            ComparedMessage(role, content, _TOKEN.findall(_NOT.sub("n't", content).lower()))
            for role, content in _MESSAGE.findall(self._text)
        ]

    @cached_property
    def system(self) -> list[list[str]]:
        """The words of the system messages."""
        return [message.words for message in self.messages if message.role == "system"]

    @cached_property
    def turns(self) -> list[ComparedMessage]:
        return [message for message in self.messages if message.role != "system"]

    @cached_property
    def length(self) -> int:
        """The number of words of the turns."""
        return _length(self.turns)


def relation(one: ComparedText, other: ComparedText) -> Relation:
    """The relation of the first conversation to the second."""
    if one.digits not in other.digits and other.digits not in one.digits:
        return Relation.OTHER
    if one.system != other.system or not one.turns:
        return Relation.OTHER
    if len(one.turns) == len(other.turns) and one.digits == other.digits and say_the_same(one.turns, other.turns):
        return Relation.SAME
    if one.length < other.length:
        return Relation.PART if is_part(one, other) else Relation.OTHER
    return Relation.WHOLE if is_part(other, one) else Relation.OTHER


def say_the_same(one: list[ComparedMessage], other: list[ComparedMessage]) -> bool:
    """Whether two conversations differ in no critical word, and else only a little.

    At most MAX_CHANGE of the words of each role may differ, and half of those of a message; where the answers have less
    than MIN_ANSWER words, none. Or a single word of a single question, if all else is equal.
    """
    if [message.role for message in one] != [message.role for message in other]:
        return False
    changes = [_Change(a, b) for a, b in zip(one, other, strict=True) if a.words != b.words]
    if len(changes) == 1 and changes[0].before.role == "user" and changes[0].number <= 1:
        return _length(one) >= MIN_PART and not changes[0].turns_the_meaning()
    if not all(_are_small(changes, one, role) for role in {change.before.role for change in changes}):
        return False
    asked = {word for change in changes if change.before.role == "user" for word in change.words}
    if any(asked & change.words for change in changes if change.before.role != "user"):
        return False
    return not any(change.turns_the_meaning() for change in changes)


def _are_small(changes: list["_Change"], messages: list[ComparedMessage], role: str) -> bool:
    found = [change for change in changes if change.before.role == role]
    length = _length([message for message in messages if message.role == role])
    if role != "user" and length < MIN_ANSWER:
        return False
    is_little = all(2 * change.number <= min(len(change.before.words), len(change.after.words)) for change in found)
    return is_little and sum(change.number for change in found) <= MAX_CHANGE * length


def _length(messages: list[ComparedMessage]) -> int:
    return sum(len(message.words) for message in messages)


class _Change:
    def __init__(self, before: ComparedMessage, after: ComparedMessage) -> None:
        first, second = Counter(before.words), Counter(after.words)
        self.before, self.after = before, after
        self._removed, self._added = first - second, second - first

    @property
    def words(self) -> set[str]:
        return {*self._removed, *self._added}

    @property
    def number(self) -> int:
        return max(self._removed.total(), self._added.total())

    def turns_the_meaning(self) -> bool:
        before, after = (Counter(pairwise(["", *message.words, ""])) for message in (self.before, self.after))
        gone, come = before - after, after - before
        if max(gone.total(), come.total()) > 2 * self.number:
            return True
        return _excluded({*self._removed}, {*self._added}, gone, come) or (
            _critical(self.before.text) != _critical(self.after.text)
        )


_Pairs = Iterable[tuple[str, str]]


def _excluded(removed: set[str], added: set[str], gone: _Pairs, come: _Pairs) -> bool:
    """Whether a word is replaced by one that excludes it, or a number is added or removed.

    A word is replaced by another if they have the same neighbour, before or after.
    """
    replaced = {*_replaced(removed, added, gone, come)}
    replaced |= {*_replaced(removed, added, ((y, x) for x, y in gone), ((y, x) for x, y in come))}
    if any(_exclude_each_other(x, y) for x, y in replaced):
        return True
    known = {word for pair in replaced for word in pair}
    return any(word in NUMBER_WORDS and word not in known for words in (removed, added) for word in words)


def _replaced(removed: set[str], added: set[str], gone: _Pairs, come: _Pairs) -> Iterator[tuple[str, str]]:
    after = defaultdict(list)
    for neighbour, word in come:
        if word in added:
            after[neighbour].append(word)
    return ((word, other) for neighbour, word in gone if word in removed for other in after.get(neighbour, ()))


def _exclude_each_other(word: str, other: str) -> bool:
    if other in ALTERNATIVES.get(word, ()) or (word in NUMBER_WORDS and other in NUMBER_WORDS):
        return True
    short, long = sorted((word, other), key=len)
    if any(long == prefix + short for prefix in _APART):
        return True
    stems = [text.removesuffix("ful").removesuffix("less") for text in (word, other)]
    return stems[0] == stems[1]  # useful, useless


def _critical(content: str) -> list[str]:
    content = _NOT.sub("n't", content)
    return [match[0].lower() for match in _TOKEN.finditer(content) if _is_critical(match)]


def _is_critical(match: re.Match[str]) -> bool:
    word = match[0]
    if word.isascii() and word.isalpha() and word.islower():
        return word in NEGATIONS or (len(word) == 1 and word not in _NO_SYMBOLS)
    lower = word.lower()
    if not word[0].isalpha() or lower in NEGATIONS or "n't" in lower:
        return True
    if word[0].isupper():
        stem = re.split("['’]", lower)[0]
        before = match.string[max(0, match.start() - 9) : match.start()]
        no_name = stem == "i" or (stem in NO_NAMES and _OPENING.search(before) is not None)
        return not no_name or word[1:] != word[1:].lower()
    return word != lower or any(map(str.isdigit, word)) or bool(_UNCASED.search(word))


def is_part(part: ComparedText, whole: ComparedText) -> bool:
    """Whether the turns of one conversation are successive ones of another, but for the end of the last answer.

    A last answer may be truncated, also within a word.
    """
    if not max(MIN_PART, MIN_SHARE * whole.length) <= part.length < whole.length:
        return False
    count = len(part.turns)
    starts = range(len(whole.turns) - count + 1)
    return any(_starts_with(whole.turns[start : start + count], part.turns) for start in starts)


def _starts_with(messages: list[ComparedMessage], part: list[ComparedMessage]) -> bool:
    *before, last = [(message.role, message.words) for message in part]
    *others, end = [(message.role, message.words) for message in messages]
    if before != others or last[0] != end[0]:
        return False
    return last[1] == end[1] or (last[0] == "assistant" and _is_truncated(last[1], end[1]))


def _is_truncated(words: list[str], whole: list[str]) -> bool:
    length = len(words)
    if length < MIN_PART or len(whole) - length < MIN_CUT or words[:-1] != whole[: length - 1]:
        return False
    cut, word = words[-1], whole[length - 1]
    return cut == word or (cut.isalpha() and word.isalpha() and word.startswith(cut))
