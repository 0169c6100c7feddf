"""Chains: several conversations that follow one another as one chat, so that the model learns to read far back.

The system message of a chat stands at its beginning alone. So conversations with the same one make a chain, in which
only the first keeps it; those whose system message is too rare make chains in which each keeps its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chatmill.conversation import IM_START, LossKind, TemplateName
from chatmill.encoded.token_files import EncodedSplit
from chatmill.training.train_parameters import Weight, share_of


def best_fit(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Assign items to rows: longest first, each to the fullest row that still has room for it.

    `best_fit([5, 3, 2, 6], 8)` is `[[3, 2], [0, 1]]`.
    """
    rows: list[list[int]] = []
    by_room: list[list[int]] = [[] for _ in range(row_length + 1)]  # rows by the number of tokens that still fit
    rooms = 0  # bit r is set where by_room[r] has rows
    for item in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[item]
        if fitting := rooms >> length:
            room = length + (fitting & -fitting).bit_length() - 1
            row = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
        else:
            room, row = row_length, len(rows)
            rows.append([])
        rows[row].append(item)
        by_room[room - length].append(row)
        rooms |= 1 << (room - length)
    return rows


class Row(NamedTuple):
    """K conversations of a row. One whose first `skipped` tokens are left out continues the one before it."""

    conversations: np.ndarray  # (K,) int64, indices
    skipped: np.ndarray  # (K,) int64, tokens; 0 where a chain or a single conversation begins


def find_heads(
    split: EncodedSplit, starts: np.ndarray, lengths: np.ndarray, template: TemplateName, special: Mapping[str, int]
) -> np.ndarray:
    """(N,) the tokens of `<|bos|>` and of the system message, if any, of the conversations at `starts`.

    In the template `markers`, one. A system message is the only one whose role differs from that of the message after
    the next, and no answer follows it.
    """
    heads = np.ones(len(starts), np.int64)
    marks = np.flatnonzero(split.ids == special[IM_START])
    if template == "chatml" and len(marks):
        ends, first = starts + lengths, np.searchsorted(marks, starts)
        marks = np.append(marks, [len(split.ids)] * 3)
        second, third = np.minimum(marks[first + 1], ends), np.minimum(marks[first + 2], ends)
        trained = np.append(split.loss == LossKind.TRAINED, False)
        answers = np.logical_or.reduceat(trained, np.stack([second, third], axis=1).ravel())[::2]
        last = len(split.ids) - 1
        roles, later_roles = (split.ids[np.minimum(mark + 1, last)] for mark in (marks[first], third))
        is_system = (third < ends) & (roles != later_roles)
        heads = np.where(is_system & ~answers, second - starts, heads)
    return heads


def make_chains(
    members: np.ndarray,
    lengths: np.ndarray,
    heads: np.ndarray,
    kinds: np.ndarray,
    row_length: int,
    random: np.random.Generator,
) -> Iterator[Row]:
    """The conversations `members` in chains of at most `row_length` tokens, in random order within each.

    Of all N conversations, `lengths` and `heads` are tokens, and `kinds` are equal where heads are.
    """
    rare, chained = [], []
    for kind in np.unique(kinds[members]):
        alike = members[kinds[members] == kind]
        if lengths[alike].sum() < row_length:
            rare.append(alike)
        else:
            chained.append((alike, int(heads[alike[0]])))
    if rare:
        chained.append((np.concatenate(rare), 1))
    for alike, skipped in chained:
        for chain in best_fit((lengths[alike] - skipped).tolist(), row_length - skipped):
            conversations = alike[random.permutation(chain)]
            yield Row(conversations, np.where(np.arange(len(conversations)), skipped, 0))


# How often each conversation is read in an epoch, by train_model.source_weights.

KEY = "train_model.source_weights"
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
        raise ValueError(f"{KEY}: nothing is left to train on: expected a weight above 0 for one of {', '.join(names)}")
    if others and total >= 1:
        rest = ", ".join(name for name, factor in zip(names, factors, strict=True) if factor)
        problem = f"the shares sum to {total:.0%}, which leaves nothing for {rest}"
        raise ValueError(f"{KEY}: {problem}: lower them, or set 0 there")
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
