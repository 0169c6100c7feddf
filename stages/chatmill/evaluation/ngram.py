"""Counted n-gram models of token ids with interpolated modified Kneser-Ney smoothing, a baseline for trained models.

    p(w | h) = (c(h w) - D(c(h w))) / c(h) + backoff(h) * p(w | h without its first token)
    backoff(h) = sum over w of D(c(h w)) / c(h),  where c(h) = sum over w of c(h w)

The method is that of Chen and Goodman 1998, "An Empirical Study of Smoothing Techniques for Language Modeling". Below
the unigrams each token has the probability 1 / V. In the highest order of a model c counts occurrences. In the lower
ones it counts the different tokens before an n-gram; of one that begins a conversation it counts occurrences, as KenLM
does. A context h that did not occur is shortened. The first token of a conversation is only context.

The n-grams of all texts, counted or scored, are ranked together: one is known by the rank of its context, the first
n - 1 tokens, and by its last token. Counts are arrays by rank, 0 where an n-gram is in no counted text.

Shapes: N tokens of D conversations, one after another, of which the first are counted; V vocabulary; U different
n-grams of an order, C of the next lower one. The rank -1 stands for an n-gram that would begin before its conversation.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chatmill.encoded.token_files import EncodedSplit, read_meta, read_split
from chatmill.pipeline.progress import progress
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer

MAX_ORDER = 8
MAX_TRAIN_TOKENS = 1 << 23  # of random text, the worst case, took 15 s and 1.2 GB
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)  # those of KenLM

Ids = NDArray[np.integer[Any]]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Text = tuple[Ids, Integers]  # conversations ids[offsets[i]:offsets[i + 1]]


class CountedText(NamedTuple):
    """The text that is counted, and the one by which the order of a model is chosen."""

    train: EncodedSplit
    validation: EncodedSplit


class NgramScore(NamedTuple):
    """The nats of tokens under the best n-gram model."""

    nats: Floats  # (N,), 0 for the first token of each conversation
    order: int
    train_tokens: int  # that were counted


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

    It is the order that needs the fewest bits per byte of the validation text. If the training text has more than
    MAX_TRAIN_TOKENS tokens, only every k-th conversation is counted, so that about that many tokens or fewer remain.
    """
    train, validation = text
    lengths = np.diff(train.offsets)
    chosen = np.arange(len(lengths)) % max(1, -(-len(train.ids) // MAX_TRAIN_TOKENS)) == 0
    counted = train.ids[np.repeat(chosen, lengths)], np.concatenate(([0], np.cumsum(lengths[chosen])))
    scored = joined((validation.ids, validation.offsets), (ids, offsets))
    orders = nats_by_order(counted, scored, len(tokenizer.is_text))
    found = list(progress(orders, "n-grams", total=MAX_ORDER, unit="order"))
    size, is_text = len(validation.ids), tokenizer.is_text[validation.ids]
    best = int(np.argmin([nats[:size][is_text].sum() for nats in found]))
    return NgramScore(found[best][size:], best + 1, len(counted[0]))


def joined(first: Text, second: Text) -> Text:
    return np.concatenate((first[0], second[0])), np.concatenate((first[1], second[1][1:] + len(first[0])))


def nats_by_order(counted: Text, scored: Text, vocab_size: int) -> Iterator[Floats]:
    """Yield the nats of each scored token under the counted models of order 1 to MAX_ORDER.

    They are 0 for the first token of each conversation. Raises ValueError if no counted one has two tokens.
    """
    ids, offsets = joined(counted, scored)
    size = len(counted[0])
    is_next = np.ones(len(ids), np.bool_)  # whether a token of the same conversation is before it
    is_next[offsets[:-1][np.diff(offsets) > 0]] = False
    if not is_next[:size].any():
        raise ValueError("no conversation of two tokens or more: there is nothing to count")
    assert ids.max() < vocab_size, "an id is outside the vocabulary"
    grams = Ngrams(np.zeros(vocab_size, np.int64), 1, ids.astype(np.int64), np.zeros(len(ids), np.int64))
    lower = np.full(len(ids) - size, 1 / vocab_size)
    for order in range(1, MAX_ORDER + 1):
        occurring = grams.ranks[:size][is_next[:size] & (grams.ranks[:size] >= 0)]
        yield np.where(is_next[size:], -np.log(grams.probabilities(occurring, lower)), 0.0)
        if order < MAX_ORDER:
            longer = grams.longer(ids, is_next, vocab_size)
            lower = grams.probabilities(preceded(grams.ranks[:size], longer.ranks[:size], is_next[:size]), lower)
            grams = longer


class Ngrams(NamedTuple):
    """The n-grams of one order, and where they occur."""

    owners: Ids  # (U,) the context of each n-gram
    num_contexts: int
    ranks: Integers  # (N,) of the n-gram that ends at each token
    contexts: Integers  # (N,) of these n-grams

    def longer(self, ids: Ids, is_next: NDArray[np.bool_], vocab_size: int) -> "Ngrams":
        contexts = np.where(is_next, np.roll(self.ranks, 1), -1)
        ends = np.flatnonzero(contexts >= 0)
        keys, found = np.unique(contexts[ends] * vocab_size + ids[ends], return_inverse=True)
        ranks = np.full(len(ids), -1)
        ranks[ends] = found
        return Ngrams(keys // vocab_size, len(self.owners), ranks, contexts)

    def probabilities(self, occurring: Integers, lower: Floats) -> Floats:
        """p(w | h) of the last len(lower) tokens, from the ranks of counted n-grams and the next lower order's p."""
        counts = np.bincount(occurring, minlength=len(self.owners))
        discounts = np.array([0, *estimate_discounts(counts)])[np.minimum(counts, 3)]
        totals, freed = (np.bincount(self.owners, values, self.num_contexts) for values in (counts, discounts))
        all_of_context = np.maximum(totals, 1)[self.owners]  # nothing of it is counted where it is 0
        shares = np.append((counts - discounts) / all_of_context, 0)  # the last entry is that of rank -1
        backoffs = np.append(np.where(totals > 0, freed / np.maximum(totals, 1), 1), 1)  # 1 where nothing follows
        last = slice(len(self.ranks) - len(lower), None)
        return shares[self.ranks[last]] + backoffs[self.contexts[last]] * lower


def preceded(ranks: Integers, longer: Integers, is_next: NDArray[np.bool_]) -> Integers:
    """Each n-gram once for each token that comes before it, and for each time that it begins a conversation.

    Given are the ranks (N,) of the n-grams and of the longer ones that end at each token.
    """
    ends = np.flatnonzero(longer >= 0)
    places = np.full(longer.max(initial=-1) + 1, -1)
    places[longer[ends]] = ends  # any occurrence of each longer one will do
    begins = is_next & (ranks >= 0) & (longer < 0)
    return np.concatenate((ranks[places[places >= 0]], ranks[begins]))


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
