import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.app.verdict.views import ScoredText, word_differences


def scored(text, nats, breaks=()):
    return ScoredText(text, np.array(nats, float), list(breaks))


@given(st.text(min_size=1), st.lists(st.integers(0, 20)), st.integers(0, 2**32))
def test_words_have_all_of_the_difference_and_the_text(text, breaks, seed):
    content, random = text.encode("utf-8", "replace"), np.random.default_rng(seed)
    sides = [scored(content, 10 * random.random(len(content)), [b for b in breaks if b < len(content)]) for _ in "AB"]
    words = [word for part in word_differences(*sides) for word in part]
    if not breaks and text.strip():
        expected = (sides[1].nats - sides[0].nats).sum() / math.log(2)
        assert sum(word.bits for word in words) == pytest.approx(expected, abs=1e-6)
        assert "".join(word.text for word in words) == content.decode()
