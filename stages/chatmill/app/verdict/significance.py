"""Whether two sides differ: each is one run, or several that differ by their seed alone.

Two things blur a difference of bits per byte. Other conversations would have given another one: the paired bootstrap
over conversations says how far. And a run with another seed would have: bits vary by a relative standard deviation.
Few runs estimate it badly, so it is moderated: SEED_NOISE counts as an estimate with SEED_FREEDOM degrees of freedom
beside that of the runs of both sides (Smyth 2004, doi:10.2202/1544-6115.1027). The squares of both parts add up.

Shapes: C conversations, I items that an answer is right or wrong for.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from chatmill.evaluation.intervals import NORMAL_QUANTILE, Interval, bootstrap

SEED_NOISE = 0.0067  # of 24 seeds of a short run of the default model: tests/benchmarks/seed_noise.py
SEED_FREEDOM = 8


class Noise(NamedTuple):
    """How much runs vary that differ by their seed alone."""

    deviation: float  # of a run's bits per byte, relative to them
    quantile: float  # standard deviations within which 95 % lie, as sure as the deviation is known
    runs: int  # that it was estimated from beside SEED_NOISE

    @property
    def of_rerun(self) -> float:
        """The relative difference that a run and its rerun with another seed stay below in 95 % of cases."""
        return self.quantile * math.sqrt(2) * self.deviation


class BitsDifference(NamedTuple):
    """By how much the second side needs more bits than the first, relative to it."""

    value: float
    interval: Interval | None  # None where there are too few conversations
    noise: Noise

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


def bits_difference(
    first: Sequence[np.ndarray], second: Sequence[np.ndarray], noise: Noise | None = None
) -> BitsDifference:
    """The difference between two sides, given the nats (C,) of the same texts under each of their runs.

    `noise` is by default `seed_noise` of the two.
    """
    noise = noise or seed_noise([first, second])
    of_first, of_second = (np.mean(side, axis=0) for side in (first, second))
    value = float(of_second.sum() / of_first.sum()) - 1
    sampled = bootstrap(of_second - of_first, of_first)
    if sampled is None:
        return BitsDifference(value, None, noise)
    of_seeds = noise.quantile * noise.deviation * math.sqrt(1 / len(first) + 1 / len(second))
    below, above = (math.hypot(limit - value, of_seeds) for limit in sampled)
    return BitsDifference(value, (value - below, value + above), noise)


def seed_noise(sides: Sequence[Sequence[np.ndarray]]) -> Noise:
    """The noise of runs, by those of the sides that have several, and by SEED_NOISE."""
    totals = [np.array([run.sum() for run in side]) for side in sides if len(side) > 1]
    freedom = SEED_FREEDOM + sum(len(side) - 1 for side in totals)
    squares = SEED_FREEDOM * SEED_NOISE**2 + sum((((side / side.mean()) - 1) ** 2).sum() for side in totals)
    return Noise(math.sqrt(squares / freedom), student_quantile(freedom), sum(map(len, totals)))


def student_quantile(freedom: int) -> float:
    """The 0.975 quantile of Student's t distribution with 4 degrees of freedom or more, to 0.5 %.

    It is the expansion of Abramowitz and Stegun, 26.7.5.
    """
    z, n = NORMAL_QUANTILE, freedom
    terms = (
        (z**3 + z) / (4 * n),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3),
    )
    return z + sum(terms)


class ShareDifference(NamedTuple):
    """By how much the second side's share of right answers is larger, on the same items."""

    first: float
    second: float
    items: int
    p: float  # the probability of a difference as large where there is none

    @property
    def is_clear(self) -> bool:
        """Whether such a difference is rarer than one in twenty."""
        return self.p < 0.05


def share_difference(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> ShareDifference | None:
    """The difference between two sides, given the outcomes (I,), 0 to 1, of each of their runs; None without items.

    One run each is compared by McNemar's exact test. Of several the mean outcomes of each item are, by a sign test of
    which McNemar's is a case: items are independent, runs that answer the same item are not.
    """
    of_first, of_second = (np.mean(side, axis=0) for side in (first, second))
    if not len(of_first):
        return None
    better, worse = int((of_second > of_first).sum()), int((of_second < of_first).sum())
    return ShareDifference(float(of_first.mean()), float(of_second.mean()), len(of_first), sign_test(better, worse))


def sign_test(better: int, worse: int) -> float:
    """The two-sided probability that of so many differences as few have one sign, or fewer, if both are as likely."""
    number, fewer = better + worse, min(better, worse)
    ways = sum(math.comb(number, k) for k in range(fewer + 1))
    return min(1.0, 2 * ways / int(2**number))
