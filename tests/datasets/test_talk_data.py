"""The hand-written conversations follow the rules of data/README.md."""

import json
import re
from collections import Counter, defaultdict

import pytest

from support.paths import ROOT

FILE = ROOT / "data/raw/talk.jsonl"
HELD_OUT = ROOT / "data/raw/smalltalk.jsonl"


def words(text):
    return re.findall(r"[\w']+", text.lower())


def texts_of(file):
    return [[message["content"] for message in json.loads(line)["messages"]] for line in file.open(encoding="utf-8")]


@pytest.fixture(scope="module")
def conversations():
    return texts_of(FILE)


def five_grams(messages):
    return {tuple(said[i : i + 5]) for said in map(words, messages) for i in range(len(said) - 4)}


def test_no_conversation_repeats_another(conversations):
    """Nor a held-out one: less than 30 % of a conversation's five-word sequences occur in another one."""
    grams = [five_grams(messages) for messages in conversations + texts_of(HELD_OUT)]
    places = defaultdict(list)
    for number, sequences in enumerate(grams):
        for sequence in sequences:
            places[sequence].append(number)
    shared = Counter(
        (a, b) for numbers in places.values() if len(numbers) > 1 for a in numbers for b in numbers if a != b
    )
    own = ((len(grams[a]), count) for (a, _), count in shared.items() if a < len(conversations))
    assert all(count < 0.3 * length for length, count in own if length > 4)
