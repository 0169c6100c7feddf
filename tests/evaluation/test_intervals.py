import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.evaluation.intervals import (
    bits_interval,
    interval_of_mean,
    wilson,
)


def test_wilsons_interval_is_that_of_the_textbook():
    """Newcombe (1998), table I: 81 of 263, 15 of 148, 0 of 20 and 1 of 29."""
    published = {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }
    for (successes, n), limits in published.items():
        assert wilson(successes, n) == pytest.approx(limits, abs=5e-5)
    assert wilson(0, 0) is None


@given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.floats(0, n), st.just(n))))
def test_a_share_lies_within_its_interval_and_that_within_0_and_1(given):
    successes, n = given
    low, high = wilson(successes, n)
    assert 0 <= low <= successes / n <= high <= 1 and low < high


def test_an_interval_of_the_mean_covers_the_truth_in_95_of_100_experiments():
    random, chances, covered = np.random.default_rng(0), np.array([0.99, 0.97, 0.9, 0.8, 1.0]), 0
    for correct in random.binomial(40, chances, size=(1000, 5)):
        low, high = interval_of_mean([(one, 40) for one in correct.tolist()])
        covered += low <= chances.mean() <= high
    assert 940 <= covered <= 1000


def texts(count, seed=0):
    random = np.random.default_rng(seed)
    num_bytes = random.integers(20, 200, count)
    return num_bytes * random.normal(1, 0.2, count), num_bytes


def test_the_bootstrap_agrees_with_the_standard_error_of_a_ratio():
    nats, num_bytes = texts(2000)
    ratio = nats.sum() / num_bytes.sum()
    error = np.sqrt(((nats - ratio * num_bytes) ** 2).sum()) / num_bytes.sum()  # Cochran 1977, section 6.3
    expected = np.array([ratio - 1.96 * error, ratio + 1.96 * error]) / math.log(2)
    assert bits_interval(nats, num_bytes) == pytest.approx(expected, abs=0.15 * error)


def test_conversations_without_bytes_count_for_nothing_and_a_handful_has_no_interval():
    nats, num_bytes = texts(30)
    padded = np.append(nats, 0.0), np.append(num_bytes, 0)
    assert bits_interval(*padded) == bits_interval(nats, num_bytes)
    assert bits_interval(nats[:9], num_bytes[:9]) is None
    assert bits_interval(nats[:0], num_bytes[:0]) is None


def test_a_paired_difference_is_found_where_the_single_intervals_overlap():
    nats, num_bytes = texts(100)
    better = 0.99 * nats
    low, high = bits_interval(nats - better, num_bytes)
    assert 0 < low < 0.01 * nats.sum() / num_bytes.sum() / math.log(2) < high
    assert bits_interval(nats, num_bytes)[0] < bits_interval(better, num_bytes)[1]
