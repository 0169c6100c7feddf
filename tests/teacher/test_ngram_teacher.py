from collections import Counter

import numpy as np
import pytest

from chatmill.encoded.token_files import EncodedSplit
from chatmill.teacher import ngram_teacher
from chatmill.teacher.ngram_teacher import DISCOUNT, NgramTeacher


def naive(conversations, conversation, place, order):
    """The chances of the tokens that may stand at a place, by counts of all other places."""
    rest, chances = 1.0, Counter()
    for length in range(min(order - 1, place), 0, -1):
        context = conversation[place - length : place]
        after = Counter(
            other[i]
            for other in conversations
            for i in range(length, len(other))
            if other[i - length : i] == context and not (other is conversation and i == place)
        )
        if total := after.total():
            for token, count in after.items():
                chances[token] += rest * (count - DISCOUNT) / total if count > DISCOUNT else 0
            rest *= DISCOUNT * len(after) / total
    return chances


def split_of(conversations):
    offsets = np.cumsum([0, *map(len, conversations)])
    ids = np.array([i for conversation in conversations for i in conversation], np.uint16)
    return EncodedSplit(ids, np.zeros(len(ids), np.uint8), offsets)


def predict(split, order, kept):
    """The predictions of all tokens."""
    return NgramTeacher(split, order).predict(slice(0, len(split.offsets) - 1), kept)


@pytest.mark.parametrize("order", [2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_each_token_is_predicted_from_all_others(monkeypatch, seed, order):
    random = np.random.default_rng(seed)
    conversations = [random.integers(0, 4, length).tolist() for length in random.integers(1, 30, 12)]
    split = split_of(conversations)
    monkeypatch.setattr(ngram_teacher, "_BLOCK", 50)
    tokens, chances = predict(split, order, 5)
    assert tokens.shape == chances.shape == (len(split.ids), 5)
    row = iter(zip(tokens, chances, strict=True))
    for conversation in conversations:
        for place in range(len(conversation)):
            found = Counter()
            for token, chance in zip(*next(row), strict=True):
                found[int(token)] += float(chance)
            assert +found == pytest.approx(dict(+naive(conversations, conversation, place, order)), abs=1e-6)


def test_only_the_likeliest_are_kept_the_likeliest_first():
    split = split_of([[0, 1], *([0, token] for token in (2, 2, 2, 3, 3, 4))])
    found = predict(split, 3, 2)
    assert found.tokens[1].tolist() == [2, 3]
    assert found.chances[1].tolist() == pytest.approx([2.25 / 6, 1.25 / 6])


@pytest.mark.parametrize("conversations", [[[1]], [[1], [2]], [[]]])
def test_without_contexts_nothing_is_predicted(conversations):
    assert (predict(split_of(conversations), 5, 5).chances == 0).all()
