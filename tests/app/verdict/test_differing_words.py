import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.app.verdict.verdict import word_differences


@given(st.text(min_size=1), st.lists(st.integers(0, 20)), st.integers(0, 2**32))
def test_words_have_all_of_the_difference_and_the_text(text, breaks, seed):
    content = text.encode("utf-8", "replace")
    bits = np.random.default_rng(seed).uniform(-10, 10, len(content))
    words = [word for part in word_differences(content, [b for b in breaks if b < len(content)], bits) for word in part]
    if not breaks and text.strip():
        assert sum(word["bits"] for word in words) == pytest.approx(bits.sum(), abs=1e-6)
        assert "".join(word["text"] for word in words) == content.decode()
