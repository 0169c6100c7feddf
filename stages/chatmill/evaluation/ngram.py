"""Counted n-gram models of token ids with interpolated modified Kneser-Ney smoothing, a baseline for trained models.

    p(w | h) = (c(h w) - D(c(h w))) / c(h) + backoff(h) * p(w | h without its first token)
    backoff(h) = sum over w of D(c(h w)) / c(h),  where c(h) = sum over w of c(h w)

The method is that of Chen and Goodman 1998, "An Empirical Study of Smoothing Techniques for Language Modeling". Below
the unigrams each token has the probability 1 / V. In the highest order of a model c counts occurrences. In the lower
ones it counts the different tokens before an n-gram; of one that begins a conversation it counts occurrences, as KenLM
does. A context h that did not occur is shortened. The first token of a conversation is only context.

An n-gram is known by the rank of its context, the first n - 1 tokens, among those that occurred, and by its last token.
Models of all orders use the same tables, since what is counted below the highest order does not depend on it.

Shapes: N tokens of D conversations, one after another; V vocabulary; U different n-grams of an order; C of the next
lower order. The rank -1 stands for what did not occur.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chatmill.encoded.token_files import EncodedSplit, read_meta, read_split
from chatmill.pipeline.progress import progress
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer

MAX_ORDER = 8
MAX_TRAIN_TOKENS = 1 << 23  # of random text, the worst case, took 15 s and 1.6 GB
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)  # those of KenLM
NO_KEY = np.iinfo(np.int64).max

Ids = NDArray[np.integer[Any]]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]


class CountedText(NamedTuple):
    """The text that is counted, and the one by which the order of a model is chosen."""

    train: EncodedSplit
    validation: EncodedSplit


class NgramScore(NamedTuple):
    """The nats of tokens under the best n-gram model."""

    nats: Floats  # (N,), 0 for the first token of each conversation
    order: int
    train_tokens: int  # that were counted


class Smoothed(NamedTuple):
    """The terms of p(w | h); the last entries, at index -1, are of n-grams that did not occur."""

    shares: Floats  # (U + 1,)
    backoffs: Floats  # (C + 1,)

    def probabilities(self, ranks: Integers, contexts: Integers, lower: Floats) -> Floats:
        """(N,) the probability of n-grams of these ranks in these contexts, given that of the next lower order."""
        return self.shares[ranks] + self.backoffs[contexts] * lower


class Table(NamedTuple):
    """The n-grams of one order, smoothed for the model whose highest order this is, and for models of higher orders."""

    keys: Integers  # (U + 1,): rank of the context * V + last token, sorted; NO_KEY at the end
    highest: Smoothed
    lower: Smoothed | None  # none in MAX_ORDER

    def ranks(self, keys: Integers) -> Integers:
        """(N,) the rank of the n-gram with each key."""
        places = np.searchsorted(self.keys, keys)
        return np.where(self.keys[places] == keys, places, -1)


class _Counted(NamedTuple):
    keys: Integers  # (U,)
    counts: Integers  # (U,)
    ranks: Integers  # (N,) of the n-gram that ends at each token


def read_counted_text(tokens: Path, tokenizer: ChatTokenizer, template: str, model: Path) -> CountedText:
    """The training text in a folder of `encode`. Raises ValueError if it is not encoded as the model reads text."""
    meta = read_meta(tokens)
    if (meta.fingerprint, meta.template) != (tokenizer.fingerprint, template):
        raise ValueError(
            f"{tokens} was encoded with another tokenizer or template than that of {model}: recreate both with dvc "
            "repro train_model"
        )
    return CountedText(read_split(tokens, "train"), read_split(tokens, "validation"))


def score_with_ngrams(text: CountedText, tokenizer: ChatTokenizer, ids: Ids, offsets: Integers) -> NgramScore:
    """Score conversations, ids[offsets[i]:offsets[i + 1]], with n-grams of the best order.

    It is the order that needs the fewest bits per byte of the validation text. Of more than MAX_TRAIN_TOKENS tokens,
    evenly spread conversations are counted.
    """
    (train, validation), vocab_size = text, len(tokenizer.is_text)
    counted, counted_offsets = limit_tokens(train.ids, train.offsets, MAX_TRAIN_TOKENS)
    tables = progress(count_tables(counted, counted_offsets, vocab_size), "n-grams", total=MAX_ORDER, unit="order")
    size = len(validation.ids)  # both texts are scored at once, so that only one table is in memory
    both = np.concatenate((validation.ids, ids)), np.concatenate((validation.offsets, offsets[1:] + size))
    is_text = tokenizer.is_text[validation.ids]
    found = list(nats_by_order(tables, *both, vocab_size))
    best = int(np.argmin([nats[:size][is_text].sum() for nats in found]))
    return NgramScore(found[best][size:], best + 1, len(counted))


def limit_tokens(ids: Ids, offsets: Integers, max_tokens: int) -> tuple[Ids, Integers]:
    """The conversations, or every second, third, … of them, so that they have about `max_tokens` tokens at most."""
    lengths = np.diff(offsets)
    chosen = np.arange(len(lengths)) % max(1, -(-len(ids) // max_tokens)) == 0
    return ids[np.repeat(chosen, lengths)], np.concatenate(([0], np.cumsum(lengths[chosen])))


def count_tables(ids: Ids, offsets: Integers, vocab_size: int) -> Iterator[Table]:
    """Yield the tables of order 1 to MAX_ORDER of the conversations ids[offsets[i]:offsets[i + 1]].

    Raises ValueError where none has two tokens.
    """
    is_next, num_contexts = is_preceded(offsets), 1
    if not is_next.any():
        raise ValueError("no conversation of two tokens or more: there is nothing to count")
    for counted, longer in pairwise(chain(_count_orders(ids, is_next, vocab_size), [None])):
        assert counted is not None, "None is only the last one"
        contexts = counted.keys // vocab_size
        highest = smooth(counted.counts, contexts, num_contexts)
        lower = smooth(_count_preceding(counted, longer, is_next), contexts, num_contexts) if longer else None
        yield Table(np.append(counted.keys, NO_KEY), highest, lower)
        num_contexts = len(counted.keys)


def nats_by_order(tables: Iterable[Table], ids: Ids, offsets: Integers, vocab_size: int) -> Iterator[Floats]:
    """Yield the nats (N,) of each token under the models of order 1, 2, …; 0 for the first of each conversation."""
    is_next = is_preceded(offsets)
    lower, contexts = np.full(len(ids), 1 / vocab_size), np.zeros(len(ids), np.int64)
    for table in tables:
        ranks = table.ranks(contexts * vocab_size + ids)
        yield np.where(is_next, -np.log(table.highest.probabilities(ranks, contexts, lower)), 0.0)
        if table.lower is not None:
            lower = table.lower.probabilities(ranks, contexts, lower)
        contexts = _before(ranks, is_next)


def is_preceded(offsets: Integers) -> Booleans:
    """(N,) whether a token of the same conversation is before each token."""
    result = np.ones(offsets[-1], np.bool_)
    result[offsets[:-1][np.diff(offsets) > 0]] = False
    return result


def smooth(counts: Integers, contexts: Integers, num_contexts: int) -> Smoothed:
    """The terms of p(w | h) from the counts (U,) of n-grams and the ranks (U,) of their contexts."""
    discounts = np.array([0, *estimate_discounts(counts)])[np.minimum(counts, 3)]
    totals, freed = (np.bincount(contexts, values, num_contexts) for values in (counts, discounts))
    backoffs = np.divide(freed, totals, out=np.ones(num_contexts), where=totals > 0)  # 1 where nothing follows
    return Smoothed(np.append((counts - discounts) / totals[contexts], 0), np.append(backoffs, 1))


def estimate_discounts(counts: Integers) -> list[float]:
    """What is subtracted from counts of 1, of 2, and of 3 or more, estimated from how often counts of 1 to 4 occur.

    Where the estimate needs a count that does not occur, or is not above 0 and below the count, it is the one of
    FALLBACK_DISCOUNTS.
    """
    occurring = np.bincount(np.minimum(counts, 5), minlength=6).tolist()
    ones, twos = occurring[1:3]
    result = []
    for count, fallback in enumerate(FALLBACK_DISCOUNTS, start=1):
        some, more = occurring[count : count + 2]
        discount = count - (count + 1) * ones / (ones + 2 * twos) * more / some if ones and some else 0
        result.append(discount if 0 < discount < count else fallback)
    return result


def _count_orders(ids: Ids, is_next: Booleans, vocab_size: int) -> Iterator[_Counted]:
    ranks = ids.astype(np.int64)
    assert ranks.max() < vocab_size, "an id is outside the vocabulary"
    yield _Counted(np.arange(vocab_size), np.bincount(ranks[is_next], minlength=vocab_size), ranks)
    for _ in range(1, MAX_ORDER):
        contexts = _before(ranks, is_next)
        ends = np.flatnonzero(contexts >= 0)
        longer = contexts[ends] * vocab_size + ids[ends]
        keys, found, counts = np.unique(longer, return_inverse=True, return_counts=True)
        ranks = np.full(len(ids), -1)
        ranks[ends] = found
        yield _Counted(keys, counts, ranks)


def _count_preceding(counted: _Counted, longer: _Counted, is_next: Booleans) -> Integers:
    """(U,) the number of different tokens before each n-gram, plus its occurrences that begin a conversation."""
    has_longer = longer.ranks >= 0
    suffixes = np.empty(len(longer.keys), np.int64)  # the rank of each longer n-gram without its first token
    suffixes[longer.ranks[has_longer]] = counted.ranks[has_longer]
    begins = counted.ranks[is_next & (counted.ranks >= 0) & ~has_longer]
    return np.bincount(np.concatenate((suffixes, begins)), minlength=len(counted.keys))


def _before(ranks: Integers, is_next: Booleans) -> Integers:
    """(N,) the rank of the n-gram that ends before each token of the same conversation."""
    return np.where(is_next, np.roll(ranks, 1), -1)
