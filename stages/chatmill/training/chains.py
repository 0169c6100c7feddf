"""Chains: several conversations that follow one another as one chat, so that the model learns to read far back.

The system message of a chat stands at its beginning alone. So conversations with the same one make a chain, in which
only the first keeps it; those whose system message is too rare make chains in which each keeps its own.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from chatmill.conversation.chatml import IM_START
from chatmill.conversation.template import LossKind, TemplateName
from chatmill.encoded.token_files import EncodedSplit
from chatmill.training.best_fit import best_fit


class Heads(NamedTuple):
    """How each of N conversations begins: with `<|bos|>` and its system message, if it has one."""

    lengths: np.ndarray  # (N,) int64, tokens
    kinds: np.ndarray  # (N,) int64, equal for equal tokens


class Row(NamedTuple):
    """K conversations of a row. One whose first `skipped` tokens are left out continues the one before it."""

    conversations: np.ndarray  # (K,) int64, indices
    skipped: np.ndarray  # (K,) int64, tokens; 0 where a chain or a single conversation begins


def find_heads(
    split: EncodedSplit,
    starts: np.ndarray,
    lengths: np.ndarray,
    template: TemplateName,
    special: Mapping[str, int],
    kinds: dict[bytes, int],
) -> Heads:
    """The heads of the conversations at `starts`; in the template `markers`, `<|bos|>` alone. It adds to the `kinds`.

    A system message is the only one whose role differs from that of the message after the next, and no answer follows
    it.
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
    texts = (split.ids[start : start + head].tobytes() for start, head in zip(starts, heads, strict=True))
    return Heads(heads, np.array([kinds.setdefault(text, len(kinds)) for text in texts], np.int64))


def make_chains(
    members: np.ndarray, lengths: np.ndarray, heads: Heads, row_length: int, random: np.random.Generator
) -> Iterator[Row]:
    """The conversations `members` in chains of at most `row_length` tokens, in random order within each.

    `lengths` (N,) are tokens of all conversations.
    """
    rare = []
    for kind in np.unique(heads.kinds[members]):
        alike = members[heads.kinds[members] == kind]
        if lengths[alike].sum() < row_length:
            rare.append(alike)
        else:
            yield from _chains_of(alike, lengths, int(heads.lengths[alike[0]]), row_length, random)
    if rare:
        yield from _chains_of(np.concatenate(rare), lengths, 1, row_length, random)


def _chains_of(
    members: np.ndarray, lengths: np.ndarray, skipped: int, row_length: int, random: np.random.Generator
) -> Iterator[Row]:
    for chain in best_fit((lengths[members] - skipped).tolist(), row_length - skipped):
        conversations = members[random.permutation(chain)]
        yield Row(conversations, np.where(np.arange(len(conversations)), skipped, 0))
