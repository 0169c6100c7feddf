import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.evaluation import intervals
from chatmill.evaluation.intervals import (
    Estimate,
    bits_interval,
    field_of,
    interval_of_mean,
    mean_of_shares,
    share,
    values_of,
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


def test_the_mean_of_one_share_has_the_interval_of_that_share():
    assert interval_of_mean([(37, 40)]) == pytest.approx(wilson(37, 40))
    assert interval_of_mean([]) is None


def test_an_interval_of_the_mean_covers_the_truth_in_95_of_100_experiments():
    random, chances, covered = np.random.default_rng(0), np.array([0.99, 0.97, 0.9, 0.8, 1.0]), 0
    for correct in random.binomial(40, chances, size=(1000, 5)):
        low, high = interval_of_mean([(one, 40) for one in correct.tolist()])
        covered += low <= chances.mean() <= high
    assert 940 <= covered <= 1000


def test_skills_that_are_all_answered_still_have_an_interval():
    low, high = interval_of_mean([(40, 40)] * 13)
    assert high == 1 and 0.95 < low < 0.99


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


def test_resamples_in_parts_are_as_many_and_the_same_each_time(monkeypatch):
    nats, num_bytes = texts(50)
    whole = bits_interval(nats, num_bytes)
    assert whole == bits_interval(nats, num_bytes)
    monkeypatch.setattr(intervals, "MAX_DRAWS", 170)  # three resamples at a time
    assert bits_interval(nats, num_bytes) == pytest.approx(whole, rel=0.01)


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


def test_a_mean_of_shares_weighs_them_alike_and_counts_all_cases():
    found = mean_of_shares([share([1, 1, 1, 0]), share([0.5]), share([])])
    assert (found.value, found.n) == (0.625, 5) and found.interval[0] < 0.625 < found.interval[1]
    assert share([]) == mean_of_shares([]) == Estimate(None, None, 0)


def test_values_stay_in_their_place_and_intervals_and_counts_have_the_same_path():
    tree = {"a": {"b": Estimate(0.5, (0.25, 0.75), 8), "c": 7}, "d": Estimate(None, None, 0), "e": "text", "f": None}
    assert values_of(tree) == {"a": {"b": 0.5, "c": 7}, "d": None, "e": "text", "f": None}
    assert field_of(tree, "interval") == {"a": {"b": (0.25, 0.75)}}
    assert field_of(tree, "n") == {"a": {"b": 8}, "d": 0}
