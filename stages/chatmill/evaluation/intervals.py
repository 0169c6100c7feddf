"""95 % intervals of shares and of pooled figures.

Shapes: C conversations, R resamples.
"""

import math
from collections.abc import Sequence

import numpy as np

Interval = tuple[float, float]

NORMAL_QUANTILE = 1.959963984540054  # 95 % of a normal distribution lie within so many standard deviations
NUM_RESAMPLES = 1000
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


def interval_of_mean(shares: Sequence[tuple[float, int]]) -> Interval | None:
    """The interval of the unweighted mean of independent shares, each given as successes and n; None without shares.

    The distances between the shares and their Wilson limits are added in squares (the method of variance estimates
    recovery; Newcombe 1998, Zou and Donner 2008). A bootstrap over the questions would have no width where all answers
    are correct, and the mean of Wilson's limits would suppose that all shares err in the same direction.
    """
    if not shares or not all(n for _, n in shares):
        return None
    means = np.array([successes / n for successes, n in shares])
    limits = np.array([wilson(successes, n) for successes, n in shares])
    low, high = np.sqrt(((limits - means[:, None]) ** 2).sum(axis=0)) / len(shares)
    return max(0.0, float(means.mean() - low)), min(1.0, float(means.mean() + high))


def bootstrap(nats: np.ndarray, num_bytes: np.ndarray) -> Interval | None:
    """The interval of pooled bits per byte, given the nats and the bytes (C,) of each conversation.

    It is the percentile bootstrap (Efron 1979) over conversations, as the tokens of one depend on each other. None for
    fewer than two with bytes. Of a handful of conversations it is too narrow.
    """
    chosen = num_bytes > 0
    return _percentiles(nats[chosen], num_bytes[chosen])


def bootstrap_difference(nats: np.ndarray, others: np.ndarray, num_bytes: np.ndarray) -> Interval | None:
    """The interval of the bits per byte by which `others` exceed `nats`, in the same conversations (C,).

    The resamples are paired: what makes a conversation hard for both models cancels out.
    """
    return bootstrap(others - nats, num_bytes)


def _percentiles(nats: np.ndarray, num_bytes: np.ndarray) -> Interval | None:
    """The percentiles of the ratio of sums in resamples of the conversations."""
    count = len(nats)
    if count < 2:
        return None
    random = np.random.default_rng(SEED)
    rows = max(1, min(NUM_RESAMPLES, MAX_DRAWS // count))
    ratios: list[float] = []
    while len(ratios) < NUM_RESAMPLES:
        draws = random.integers(count, size=(min(rows, NUM_RESAMPLES - len(ratios)), count))
        ratios += (nats[draws].sum(axis=1) / num_bytes[draws].sum(axis=1)).tolist()
    low, high = np.percentile(ratios, [2.5, 97.5]) / math.log(2)
    return float(low), float(high)
