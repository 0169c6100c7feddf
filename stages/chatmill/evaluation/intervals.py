"""95 % intervals of shares and of pooled figures.

Shapes: C conversations, R resamples.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Interval = tuple[float, float]

NORMAL_QUANTILE = 1.959963984540054  # 95 % of a normal distribution lie within so many standard deviations
NUM_RESAMPLES = 1000
MIN_CONVERSATIONS = 10
SEED = 1
MAX_DRAWS = 1 << 21  # at a time, in 16 MB


def wilson(successes: float, n: int) -> Interval | None:
    """Wilson's interval of a share (Wilson 1927), which has a width at shares of 0 and 1 too; None for n = 0.

    `successes` may be a fraction, as ties count in part.
    """
    if n == 0:
        return None
    share, z2 = successes / n, NORMAL_QUANTILE**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    margin = NORMAL_QUANTILE * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return min(share, max(0.0, centre - margin)), max(share, min(1.0, centre + margin))


def bootstrap(numerators: np.ndarray, denominators: np.ndarray) -> Interval | None:
    """The interval of a ratio of sums over conversations, given the two parts (C,) of each.

    It is the percentile bootstrap (Efron 1979) over conversations, as the tokens of one depend on each other. None for
    fewer than MIN_CONVERSATIONS whose denominator is not 0, of which it would be too narrow.
    """
    chosen = denominators > 0
    numerators, denominators = numerators[chosen], denominators[chosen]
    count = len(numerators)
    if count < MIN_CONVERSATIONS:
        return None
    random = np.random.default_rng(SEED)
    rows = max(1, min(NUM_RESAMPLES, MAX_DRAWS // count))
    ratios: list[float] = []
    while len(ratios) < NUM_RESAMPLES:
        draws = random.integers(count, size=(min(rows, NUM_RESAMPLES - len(ratios)), count))
        ratios += (numerators[draws].sum(axis=1) / denominators[draws].sum(axis=1)).tolist()
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)


def bits_interval(nats: np.ndarray, num_bytes: np.ndarray) -> Interval | None:
    """The interval of pooled bits per byte, given the nats and the bytes (C,) of each conversation.

    With differences of the nats of two models it is the paired interval of the difference between them: what makes a
    conversation hard for both cancels out.
    """
    return bootstrap(nats / math.log(2), num_bytes)


class Estimate(NamedTuple):
    """A measured value, its interval, and the number of cases it was measured on."""

    value: float | None
    interval: Interval | None
    n: int


def share(outcomes: Sequence[float]) -> Estimate:
    """The share of successes among outcomes of 0 to 1; without any there is no value."""
    n, successes = len(outcomes), float(sum(outcomes))
    return Estimate(successes / n if n else None, wilson(successes, n), n)


def mean_of_shares(shares: Sequence[Estimate]) -> Estimate:
    """The unweighted mean of independent shares.

    The distances between the shares and their Wilson limits are added in quadrature (the method of variance estimates
    recovery; Newcombe 1998, Zou and Donner 2008). A bootstrap over the questions would have no width where all answers
    are correct, and the mean of Wilson's limits would suppose that all shares err in the same direction.
    """
    means = np.array([share.value for share in shares])
    limits = np.array([share.interval for share in shares])
    below, above = np.sqrt(((limits - means[:, None]) ** 2).sum(axis=0)) / len(shares)
    interval = max(0.0, float(means.mean() - below)), min(1.0, float(means.mean() + above))
    return Estimate(float(means.mean()), interval, sum(share.n for share in shares))


def values_of(tree: Any) -> Any:
    """The nested metrics, with each estimate replaced by its value."""
    if isinstance(tree, Estimate):
        return tree.value
    return {key: values_of(item) for key, item in tree.items()} if isinstance(tree, dict) else tree


def field_of(tree: dict[str, Any], field: str) -> dict[str, Any]:
    """The `interval` or `n` of each estimate in nested metrics, under the same keys; None is left out."""
    found = {
        key: field_of(item, field) if isinstance(item, dict) else getattr(item, field)
        for key, item in tree.items()
        if isinstance(item, dict | Estimate)
    }
    return {key: item for key, item in found.items() if item is not None and item != {}}
