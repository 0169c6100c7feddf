import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.evaluation.intervals import bits_interval, wilson


def test_wilsons_interval_is_that_of_the_textbook():
    """Newcombe (1998), table I: 81 of 263, 15 of 148, 0 of 20 and 1 of 29."""
    published = {(81, 263): (0.2553, 0.3662), (15, 148): (0.0624, 0.1605)}
    published |= {(0, 20): (0, 0.1611), (1, 29): (0.0061, 0.1718)}
    for (successes, n), limits in published.items():
        assert wilson(successes, n) == pytest.approx(limits, abs=5e-5)
    assert wilson(0, 0) is None


@given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.floats(0, n), st.just(n))))
def test_a_share_lies_within_its_interval_and_that_within_0_and_1(given):
    successes, n = given
    low, high = wilson(successes, n)
    assert 0 <= low <= successes / n <= high <= 1 and low < high


def texts(count, seed=0):
    random = np.random.default_rng(seed)
    num_bytes = random.integers(20, 200, count)
    return num_bytes * random.normal(1, 0.2, count), num_bytes


def test_a_paired_difference_is_found_where_the_single_intervals_overlap():
    nats, num_bytes = texts(100)
    better = 0.99 * nats
    low, high = bits_interval(nats - better, num_bytes)
    assert 0 < low < 0.01 * nats.sum() / num_bytes.sum() / math.log(2) < high
    assert bits_interval(nats, num_bytes)[0] < bits_interval(better, num_bytes)[1]
