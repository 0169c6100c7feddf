"""How often each conversation is read in an epoch, by train_model.source_weights.

    {"talk": 2.5, "letters": 0, "skills": "30%"}

A number is a factor: each conversation of `talk` is read twice in an epoch, and a random half of them a third time;
those of a source without a weight are read once. A share is that of the tokens of an epoch; the other sources divide
the rest in proportion to their tokens, times their factors.

Shapes: N conversations, S sources.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from chatmill.training.train_parameters import Weight, share_of

_MAX_GROWTH = 100  # an epoch has at most so many times the tokens of the data: its order is in memory


def source_factors(
    weights: Mapping[str, Weight], names: Sequence[str], tokens: NDArray[np.int64]
) -> NDArray[np.float64]:
    """(S,): how often a conversation of each source is read in an epoch, on average.

    `tokens` (S,) are those of its conversations. If every source has a share, or else the factor 0, an epoch has as
    many tokens as they. Raises ValueError if nothing would be read, or if the shares leave nothing for other sources.
    """
    given = [weights.get(name, 1.0) if count else 0.0 for name, count in zip(names, tokens, strict=True)]
    shares = np.array([share_of(weight) or 0.0 for weight in given])
    factors = np.array([0.0 if isinstance(weight, str) else float(weight) for weight in given])
    others, total = float((factors * tokens).sum()), round(float(shares.sum()), 9)
    if not others and not total:
        raise ValueError(f"nothing is left to train on: expected a weight above 0 for one of {', '.join(names)}")
    if others and total >= 1:
        rest = ", ".join(name for name, factor in zip(names, factors, strict=True) if factor)
        raise ValueError(f"the shares sum to {total:.0%}, which leaves nothing for {rest}: lower them, or set 0 there")
    size = others / (1 - total) if others else float(tokens[shares > 0].sum())
    factors += shares / (1 if others else total) * size / np.maximum(tokens, 1)
    return np.asarray(factors * min(1, _MAX_GROWTH * tokens.sum() / size))


def draw_epoch(
    sources: NDArray[np.integer], factors: NDArray[np.float64], random: np.random.Generator
) -> NDArray[np.int64]:
    """The conversations of an epoch in random order; each occurs as often as the factor (S,) of its source says.

    `sources` (N,) are indices of factors. What a factor leaves over after whole times is a random choice. The copies of
    a conversation are spread over the epoch.
    """
    numbers = np.bincount(sources, minlength=len(factors))
    ends = np.floor(np.cumsum(factors * numbers) + random.random()).astype(np.int64)
    times = np.zeros(len(sources), np.int64)
    for source, total in enumerate(np.diff(ends, prepend=0)):
        if total:
            members = random.permutation(np.flatnonzero(sources == source))
            times[members] = total // len(members)
            times[members[: total % len(members)]] += 1
    copies = np.repeat(np.arange(len(sources)), times)
    number = np.arange(len(copies)) - np.repeat(np.cumsum(times) - times, times)
    place = (number + random.random(len(copies))) / times[copies]
    return copies[np.argsort(place, kind="stable")]


def describe_shares(names: Sequence[str], shares: NDArray[np.float64], factors: NDArray[np.float64]) -> str:
    """The share of each source that is read, and in parentheses its factor."""
    parts = zip(names, shares, factors, strict=True)
    return ", ".join(f"{name} {share:.1%} ({factor:.3g})" for name, share, factor in parts if share)
