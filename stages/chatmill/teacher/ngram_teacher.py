"""A teacher that is counted: for each token of the training set, the n-gram model of all other tokens predicts it.

    p(w | h) = max(c(h w) - D, 0) / c(h) + D * n(h) / c(h) * p(w | h without its first token)

c counts without the token that is predicted, and n(h) are the different tokens after h; D is DISCOUNT. A context h that
occurs nowhere else is shortened; below a context of one token there is nothing.

A context of one token is known by its id, a longer one by the rank of a pair: the context that is all but its last
token, and that token. Contexts lie within a conversation.

Shapes: N tokens, P different pairs of a context and the token after it, X contexts, K tokens of a prediction.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chatmill.encoded.token_files import EncodedSplit
from chatmill.teacher.predictions import Predictions, keep_likeliest

DISCOUNT = 0.75
_CANDIDATES = 8  # of each order
_BLOCK = 1 << 17  # tokens that are predicted at once

Integers = NDArray[np.integer[Any]]
Floats = NDArray[np.floating[Any]]


class Counts(NamedTuple):
    """What follows the contexts of one length; the pairs of a context are next to each other, the most frequent first.

    The last entries, at index -1, are of no context and no pair.
    """

    contexts: Integers  # (N,) the context of each token, -1 where it would begin before the conversation
    own: Integers  # (N,) how often the token follows its context
    totals: Integers  # (X + 1,) tokens after a context
    distinct: Integers  # (X + 1,) different tokens after it
    firsts: Integers  # (X + 1,) its first pair
    tokens: Integers  # (P + 1,)
    counts: Integers  # (P + 1,)


def count_contexts(split: EncodedSplit, order: int) -> Iterator[Counts]:
    """The counts of contexts of one token, of two, and so on to `order` - 1."""
    ids = split.ids.astype(np.int64)
    places = np.arange(len(ids)) - np.repeat(split.offsets[:-1], np.diff(split.offsets))
    pairs: Integers = ids
    for length in range(1, order):
        contexts = np.full(len(ids), -1, np.int64)
        contexts[1:] = np.where(places[1:] >= length, pairs[:-1], -1)
        pairs, counts = count_pairs(contexts, ids)
        yield counts


def count_pairs(contexts: Integers, ids: Integers) -> tuple[Integers, Counts]:
    """(N,) the rank of the pair of each token and its context, -1 where it has none; and their counts."""
    is_inside, size = contexts >= 0, int(ids.max(initial=0)) + 1
    keys, inverse, counts = np.unique(
        contexts[is_inside] * size + ids[is_inside], return_inverse=True, return_counts=True
    )
    pairs, own = np.full(len(ids), -1, np.int64), np.zeros(len(ids), np.int32)
    pairs[is_inside], own[is_inside] = inverse, counts[inverse]
    before, tokens = np.divmod(keys, size)
    num_contexts = int(contexts.max(initial=-1)) + 1
    distinct = np.bincount(before, minlength=num_contexts)
    totals = np.bincount(before, counts, num_contexts)
    by_frequency = np.lexsort((-counts, before))
    of_contexts = totals, distinct, np.cumsum(distinct) - distinct
    of_pairs = tokens[by_frequency], counts[by_frequency]
    padded = (np.append(array, 0).astype(np.int32) for array in (*of_contexts, *of_pairs))
    return pairs, Counts(contexts.astype(np.int32), own, *padded)


class NgramTeacher:
    """N-grams of at most `order` tokens, counted on a split."""

    def __init__(self, split: EncodedSplit, order: int) -> None:
        self.split, self.counted = split, list(count_contexts(split, order))

    def predict(self, conversations: slice, num_kept: int) -> Predictions:
        first, last = self.split.offsets[[conversations.start, conversations.stop]].tolist()
        blocks = (slice(start, min(last, start + _BLOCK)) for start in range(first, max(last, first + 1), _BLOCK))
        parts = [keep_likeliest(*predict_block(self.counted, self.split.ids, block), num_kept) for block in blocks]
        return Predictions(*map(np.concatenate, zip(*parts, strict=True)))


def predict_block(counted: list[Counts], ids: NDArray[Any], block: slice) -> Predictions:
    """The candidates of all orders for a block of tokens, of which some are there more than once."""
    actual = ids[block].astype(np.int64)[:, None]
    rest = np.ones((len(actual), 1))
    candidates, chances = [], []
    for order in reversed(counted):
        contexts = order.contexts[block][:, None]
        total = order.totals[contexts] - 1
        is_known = (contexts >= 0) & (total > 0)
        number = np.arange(_CANDIDATES)
        is_pair = is_known & (number < order.distinct[contexts])
        pairs = np.where(is_pair, order.firsts[contexts] + number, -1)
        tokens = np.where(is_pair, order.tokens[pairs], -1)
        share = np.maximum(order.counts[pairs] - (tokens == actual) - DISCOUNT, 0) / np.maximum(total, 1)
        distinct = order.distinct[contexts] - (order.own[block] == 1)[:, None]
        candidates.append(tokens)
        chances.append(np.where(is_pair, rest * share, 0.0))
        rest = np.where(is_known, rest * DISCOUNT * distinct / np.maximum(total, 1), rest)
    return Predictions(np.concatenate(candidates, axis=1), np.concatenate(chances, axis=1))
