"""Copying told apart from talking: how much of the answers stands in the training data.

Texts are compared by their words in lower case. An answer is verbatim if an answer or a document of the training data
has the same words; its copied stretch is the longest run of its words that stands anywhere in one of them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np

from chatmill.conversation import is_document, parse, text_hash, unescape
from chatmill.evaluation.intervals import share
from chatmill.record_files import read_records

MAX_TRAIN_BYTES = 200_000_000  # that are searched, of a larger file a sample by hash
SEARCHED_AT_ONCE = 1000  # answers

Words = tuple[str, ...]
_WORD = re.compile(r"\w+")


def longest_runs(texts: Sequence[Words], others: Iterable[Words]) -> list[int]:
    """For each text the words of its longest run that stands in one of the others, which are read once."""
    numbers = {word: number for number, word in enumerate(dict.fromkeys(chain.from_iterable(texts)), start=1)}
    own, longest = _numbered(texts, numbers), np.zeros(len(texts), np.int64)
    owners = np.repeat(np.arange(len(texts)), [len(text) + 1 for text in texts])
    read = iter(others)
    while some := list(islice(read, SEARCHED_AT_ONCE)):
        for length, places in enumerate(_runs_in_common(own, _numbered(some, numbers)), start=1):
            np.maximum.at(longest, owners[places], length)
    return longest.tolist()


def _numbered(texts: Iterable[Words], numbers: Mapping[str, int]) -> np.ndarray:
    """The numbers of all words, 0 for those that have none, and 0 after each text."""
    return np.array([number for text in texts for number in (*(numbers.get(word, 0) for word in text), 0)], np.int64)


def _runs_in_common(own: np.ndarray, read: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the places in `own` where runs of 1, 2, … words begin that also stand in `read`."""
    places, others = np.flatnonzero(own), np.flatnonzero(read)
    runs, other_runs = own[places], read[others]  # a number for each different run
    for length in count(1):
        same, others_same = np.isin(runs, other_runs), np.isin(other_runs, runs)
        places, others = places[same], others[others_same]
        if not len(places):
            return
        yield places
        _, shorter = np.unique(np.concatenate((runs[same], other_runs[others_same])), return_inverse=True)
        words, other_words = own[places + length], read[others + length]
        runs, other_runs = shorter[: len(places)] * len(own) + words, shorter[len(places) :] * len(own) + other_words
        places, runs = places[words > 0], runs[words > 0]  # a run ends with its text


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
    wanted, found = set(own) - {()}, set[Words]()

    def given() -> Iterator[Words]:
        for answer in map(words, sampled_answers(train)):
            if answer in wanted:
                found.add(answer)
            yield answer

    stretches = longest_runs(own, given())
    model, true = (
        {
            "share": share([text in found for text in own[part]]),
            "longest_mean": float(np.mean(stretches[part])) if stretches[part] else None,
            "longest_max": max(stretches[part], default=None),
        }
        for part in (slice(len(answers)), slice(len(answers), None))
    )
    return {**model, "true": true, "train_share": sampled_share(train)}
