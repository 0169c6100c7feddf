import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ngram_teacher import CONTEXTS, DISCOUNT, KEPT, predict

from chatmill.encoded.token_files import EncodedSplit


def naive(conversations, conversation, place):
    """The chances of the tokens that may stand at a place, by counts of all other places."""
    rest, chances = 1.0, Counter()
    for length in range(min(CONTEXTS, place), 0, -1):
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


@pytest.mark.parametrize("seed", range(5))
def test_each_token_is_predicted_from_all_others(seed):
    random = np.random.default_rng(seed)
    conversations = [random.integers(0, 4, length).tolist() for length in random.integers(1, 30, 12)]
    offsets = np.cumsum([0, *map(len, conversations)])
    split = EncodedSplit(np.concatenate(conversations).astype(np.uint16), np.zeros(offsets[-1], np.uint8), offsets)
    tokens, chances = predict(split)
    assert tokens.shape == chances.shape == (offsets[-1], KEPT)
    row = iter(zip(tokens, chances, strict=True))
    for conversation in conversations:
        for place in range(len(conversation)):
            found = Counter()
            for token, chance in zip(*next(row), strict=True):
                found[int(token)] += float(chance)
            expected = naive(conversations, conversation, place)
            assert +found == pytest.approx(dict(+expected), abs=1e-6)
