import math

import numpy as np
import pytest

from chatmill.app.verdict import (
    SEED_FREEDOM,
    SEED_NOISE,
    bits_difference,
    seed_noise,
    share_difference,
    sign_test,
    student_quantile,
)

NATS = np.random.default_rng(0).uniform(20, 60, 400)


@pytest.mark.parametrize(("freedom", "quantile"), [(4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042)])
def test_quantiles_are_those_of_the_tables(freedom, quantile):
    assert student_quantile(freedom) == pytest.approx(quantile, rel=0.005)


@pytest.mark.parametrize(("better", "worse", "p"), [(0, 5, 2 / 32), (8, 1, 20 / 512), (0, 0, 1), (3, 3, 1)])
def test_the_sign_test_counts_the_ways(better, worse, p):
    assert sign_test(better, worse) == p


def test_a_change_of_all_conversations_is_as_uncertain_as_the_seed():
    found = bits_difference([NATS], [1.02 * NATS])
    margin = student_quantile(SEED_FREEDOM) * math.sqrt(2) * SEED_NOISE
    assert (found.value, found.interval) == (pytest.approx(0.02), pytest.approx((0.02 - margin, 0.02 + margin)))
    assert not found.is_clear and found.noise.of_rerun == pytest.approx(margin)
    assert bits_difference([NATS], [1.03 * NATS]).is_clear


def test_several_runs_say_as_well_how_much_they_vary():
    first, second = ([NATS * (1 + change) for change in changes] for changes in ((-0.01, 0, 0.01), (0.02, 0.02, 0.02)))
    noise = seed_noise([first, second])
    squares = SEED_FREEDOM * SEED_NOISE**2 + 2 * 0.01**2
    assert (noise.runs, noise.deviation) == (6, pytest.approx(math.sqrt(squares / (SEED_FREEDOM + 4))))
    found = bits_difference(first, second)
    margin = student_quantile(SEED_FREEDOM + 4) * noise.deviation * math.sqrt(2 / 3)
    assert found.interval == pytest.approx((0.02 - margin, 0.02 + margin))
    assert seed_noise([first[:1], second[:1]]) == (pytest.approx(SEED_NOISE), student_quantile(SEED_FREEDOM), 0)


def test_shares_are_compared_item_by_item():
    first = np.array([1, 1, 1, 0, 0, 0, 0, 0, 0], bool)
    second = np.array([1, 1, 1, 1, 1, 1, 1, 1, 1], bool)
    found = share_difference([first], [second])
    assert (found.first, found.second, found.items, found.p) == (pytest.approx(1 / 3), 1, 9, 2 / 64)
    assert found.is_clear and not share_difference([first], [first]).is_clear
    assert share_difference([first[:0]], [second[:0]]) is None
