"""Verdicts on runs of the default model that differ by their seed alone, of tests/benchmarks/seed_noise.py."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from chatmill.app.verdict import SEED_NOISE, bits_difference

RUNS = np.load(Path(__file__).parent / "seed_noise.npz")["nats"].astype(np.float64)


def test_the_constant_is_what_was_measured():
    totals = RUNS.sum(axis=1)
    assert len(RUNS) >= 20 and totals.std(ddof=1) / totals.mean() == pytest.approx(SEED_NOISE, rel=0.05)


def test_at_most_one_in_twenty_pairs_of_seeds_is_called_different():
    pairs = list(combinations(RUNS, 2))[::3]
    assert np.mean([bits_difference([first], [second]).is_clear for first, second in pairs]) <= 0.05


def test_three_seeds_a_side_find_a_change_of_two_percent():
    random, found = np.random.default_rng(1), []
    for _ in range(50):
        chosen = RUNS[random.permutation(len(RUNS))[:6]]
        difference = bits_difference(list(chosen[:3]), list(0.98 * chosen[3:]))
        found.append(difference.is_clear and difference.value < 0)
    assert np.mean(found) >= 0.8
