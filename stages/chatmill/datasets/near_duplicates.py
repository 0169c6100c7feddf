"""Near-duplicates: conversations of which one has nearly the words of the other.

A conversation is the set of its shingles, pairs of adjacent words. Of two with Jaccard similarity s, MinHash (Broder
1997, by rensa) gives equal minima with probability s; with BANDS keys of ROWS minima each they share a key with
probability 1 - (1 - s^ROWS)^BANDS: 0.98 for s = 0.7, 0.6 for s = 0.5 (Leskovec et al., Mining of Massive Datasets,
section 3.4). Those that share one are compared. Near-duplicates have in common at least the fraction SIMILAR of all
shingles, SIMILAR_ANSWERS of those of each answer, and all numbers and symbols (as 👍 and ♠) in the same order, so that
exercises that differ in a number alone are no duplicates; and no name, negation or opposite stands in one alone.

Keys are divided into shards on disk, so that memory does not grow with the data. A text that is a part of a longer one
is not found.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import category
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json
from rensa import RMinHash

from chatmill.datasets.split import DUPLICATE, NEAR_DUPLICATE, NEAR_LEAKED, TRAIN
from chatmill.pipeline.progress import progress

SIMILAR = 0.7
SIMILAR_ANSWERS = 0.5  # of the messages of the assistant alone, which may be short beside the others
BANDS, ROWS = 14, 4
SEED = 1
BATCH = 1000  # texts that are hashed at once
CACHED = 256  # texts in memory
KEY_DTYPE = np.dtype([("hash", "<u8"), ("record", "<u8")])
WITHIN = 1 << 63  # flag of a record that is compared with its own source, too
_MESSAGE = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", re.DOTALL)
_SYMBOLS = "$+<=>\U0001d000-\U0001ffff" + "".join(c for c in map(chr, range(0x80, 1 << 16)) if category(c)[0] == "S")
_WORD = re.compile(rf"\w+|[{_SYMBOLS}]")  # emojis, currencies and signs of mathematics are words
_NUMBER = re.compile(rf"\d+|[{_SYMBOLS}]")
_NAME = re.compile(r"(?<=[^\W\d_] )[A-Z]\w+|(?<=, )[A-Z]\w+")  # a capital within a sentence

# Two texts say different things if a name or a negation stands in one alone, or if a word of _ALTERNATIVES in one
# stands for another such word in the other. The words are English, with negations of some other languages.
_NEGATIONS = """
not no never none nothing nobody neither nor cannot without hardly t dont doesnt didnt wont cant isnt arent wasnt except
unless nicht kein keine nie ohne pas jamais sans nunca sin non niet geen
"""
_ALTERNATIVES = """
yes no not never true false right wrong correct incorrect zero one two three four five six seven eight nine ten eleven
twelve twenty thirty forty fifty hundred thousand million billion first second third last once twice half double dozen
good bad better worse best worst hot cold warm cool big large small little tall short long high low up down left before
after more less fewer most least increase decrease rise fall open close closed shut start stop begin end always often
sometimes rarely seldom ever all some few many every easy hard difficult fast slow old young new early late in out
inside outside on off above below over under near far light dark heavy wet dry full empty rich poor cheap expensive
strong weak win lose buy sell give take love hate like dislike accept refuse allow forbid add remove plus minus multiply
divide man woman men women boy girl he she him her his hers father mother brother sister son daughter husband wife male
female positive negative maximum minimum with without for against day night morning evening today tomorrow yesterday now
later happy sad safe unsafe dangerous same different monday tuesday wednesday thursday friday saturday sunday red blue
green yellow black white north south east west
"""
NEGATIONS, ALTERNATIVES = frozenset(_NEGATIONS.split()), frozenset(_ALTERNATIVES.split())


class ComparedText:
    """The words of a conversation without its system messages, or of a document; headers are words, too."""

    def __init__(self, text: str) -> None:
        found = [(role, content) for role, content in _MESSAGE.findall(text) if role != "system"]
        self.messages = found or [("", text)]
        self.words = [word for role, content in self.messages for word in (f"<{role}>", *_words(content))]
        self.shingles = _shingles(self.words)
        self.numbers = _NUMBER.findall(" ".join(self.words))

    def resembles(self, other: "ComparedText") -> bool:
        if self.numbers != other.numbers or _similarity(self.shingles, other.shingles) < SIMILAR:
            return False
        answers, others = self._answers(), other._answers()
        if len(answers) != len(others):
            return False
        if any(_similarity(*pair) < SIMILAR_ANSWERS for pair in zip(answers, others, strict=True)):
            return False
        here, there = Counter(self.words), Counter(other.words)
        lost, found = {*(here - there)}, {*(there - here)}
        if not ALTERNATIVES.isdisjoint(lost) and not ALTERNATIVES.isdisjoint(found):
            return False
        return (lost | found).isdisjoint(NEGATIONS | self._names() | other._names())

    def _answers(self) -> list[set[str]]:
        return [_shingles(_words(content)) for role, content in self.messages if role == "assistant"]

    def _names(self) -> set[str]:
        return {name.lower() for _, content in self.messages for name in _NAME.findall(content)}


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _shingles(words: list[str]) -> set[str]:
    return {f"{one} {other}" for one, other in pairwise(["<>", *words, "<>"])}


def _similarity(one: set[str], other: set[str]) -> float:
    """The Jaccard similarity of two sets that are not both empty."""
    common = len(one & other)
    return common / (len(one) + len(other) - common)


def keys_of(texts: Sequence[str], records: Sequence[int]) -> NDArray[np.void]:
    """The keys of the texts of records, BANDS for each; the number of a record may have the flag WITHIN."""
    keys = np.empty((len(texts), BANDS), KEY_DTYPE)
    for start in range(0, len(texts), BATCH):
        compared = list(map(ComparedText, texts[start : start + BATCH]))
        sets = [sorted(text.shingles) for text in compared]
        minima = np.array(RMinHash.digests_from_token_sets(sets, BANDS * ROWS, SEED), np.uint64)  # (T, BANDS * ROWS)
        hashes = minima.reshape(len(sets), BANDS, ROWS)
        mixed = np.zeros(hashes.shape[:2], np.uint64)
        for row in range(ROWS):
            mixed = (mixed ^ hashes[:, :, row]) * np.uint64(0x9E3779B97F4A7C15) ^ (mixed >> np.uint64(29))
        mixed += np.arange(BANDS, dtype=np.uint64)  # so that a key of one band is none of another
        numbers = np.array([crc32("|".join(text.numbers).encode()) for text in compared], np.uint64)
        keys["hash"][start : start + BATCH] = mixed ^ numbers[:, None] << np.uint64(32)
    keys["record"] = np.array(records, np.uint64)[:, None]
    return keys.ravel()


class RecordFiles(NamedTuple):
    """The prepared files, one after the other, and a folder with `states` and `positions` of their records."""

    files: list[Path]
    folder: Path

    def states(self) -> NDArray[np.uint8]:
        """The state of each record, mapped from its file."""
        return np.memmap(self.folder / "states", np.uint8, "r+")

    def positions(self) -> NDArray[np.uint64]:
        """The byte at which each record begins, and in the end that after the last one."""
        return np.memmap(self.folder / "positions", np.uint64, "r")

    def starts(self) -> list[int]:
        return list(accumulate((file.stat().st_size for file in self.files[:-1]), initial=0))

    def reader(self) -> Callable[[int], ComparedText]:
        """A function that reads the text of a record; it keeps the last ones."""
        positions, starts = self.positions(), self.starts()

        @lru_cache(CACHED)
        def read_text(record: int) -> ComparedText:
            position = int(positions[record])
            file_number = bisect_right(starts, position) - 1
            with self.files[file_number].open("rb") as stream:
                stream.seek(position - starts[file_number])
                return ComparedText(from_json(stream.read(int(positions[record + 1]) - position))["text"])

        return read_text


def mark_near_duplicates(shards: list[Path], records: RecordFiles, parallel_map: Callable[..., Iterable[Any]]) -> None:
    """Set the states of the near-duplicates in train, given shards of keys."""
    found = parallel_map(partial(_similar_pairs, records=records), shards)
    pairs = np.concatenate([np.empty((0, 2), np.int64), *progress(found, "near-duplicates", total=len(shards))])
    states = records.states()
    for first, other in np.unique(pairs, axis=0).tolist():
        if states[other] == TRAIN and states[first] <= TRAIN:
            states[other] = NEAR_LEAKED if states[first] < TRAIN else NEAR_DUPLICATE


def _similar_pairs(shard: Path, *, records: RecordFiles) -> NDArray[np.int64]:
    """(P, 2) records, of which the first stays."""
    candidates, text = _candidates(np.fromfile(shard, KEY_DTYPE), records), records.reader()
    similar = [text(one).resembles(text(other)) for one, other in candidates.tolist()]
    return candidates[np.array(similar, np.bool_)]


def _candidates(keys: NDArray[np.void], records: RecordFiles) -> NDArray[np.int64]:
    """(P, 2): each record that shares a key, after the first one that has it, and after the one before it.

    Held-out records come first, so that a record of train meets one if there is any; else the order is that of files.
    """
    states, positions = records.states(), records.positions()
    owners = (keys["record"] & ~np.uint64(WITHIN)).astype(np.int64)
    kept = states[owners] < DUPLICATE
    keys, owners = keys[kept], owners[kept]
    order = np.lexsort((owners, states[owners], keys["hash"]))
    keys, owners = keys[order], owners[order]
    if not len(keys):
        return np.empty((0, 2), np.int64)
    begins = np.append(True, keys["hash"][1:] != keys["hash"][:-1])
    first = np.maximum.accumulate(np.where(begins, np.arange(len(keys)), 0))
    places = np.flatnonzero(~begins)
    pairs = np.concatenate([np.stack([first[places], places], 1), np.stack([places - 1, places], 1)])
    sources = np.searchsorted(np.array(records.starts()), positions[owners], "right")
    within = (keys["record"] & np.uint64(WITHIN)) > 0
    one, other = pairs.T
    allowed = (sources[one] != sources[other]) | (within[one] & within[other])
    allowed &= (owners[one] != owners[other]) & (states[owners[other]] == TRAIN)
    return np.unique(owners[pairs[allowed]], axis=0)
