from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.encoded.token_files import EncodedSplit
from chatmill.evaluation.ngram import MAX_ORDER, CountedText, nats_by_order, score_with_ngrams
from support.tiny import byte_tokenizer

VOCAB_SIZE = 5
conversations = st.lists(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=12), max_size=12)
trainable = conversations.filter(lambda texts: any(len(text) > 1 for text in texts))


def encoded(texts):
    """The ids and offsets of conversations."""
    return np.array([token for text in texts for token in text], np.uint16), np.cumsum([0, *map(len, texts)])


def probabilities(train, texts, vocab_size=VOCAB_SIZE):
    """(orders, N) the probability of each token, 1 for the first of a conversation."""
    return np.exp(-np.array([*nats_by_order(encoded(train), encoded(texts), vocab_size)]))


class Twin:
    """A model of one order, in dictionaries, by the definition."""

    def __init__(self, texts, order):
        self.order, self.counts = order, defaultdict(Counter)
        before = defaultdict(set)
        for number, text in enumerate(texts):
            for end in range(2, len(text) + 1):
                for start in range(max(0, end - order), end):
                    gram = tuple(text[start:end])
                    if len(gram) == order:
                        self.counts[order][gram] += 1
                    else:  # what begins a conversation has each time another beginning before it
                        before[gram].add(text[start - 1] if start else ("beginning of", number))
        for gram, kinds in before.items():
            self.counts[len(gram)][gram] = len(kinds)
        self.discounts = {size: self.estimate(counts.values()) for size, counts in self.counts.items()}

    @staticmethod
    def estimate(counts):
        n = Counter(counts)
        result = {0: 0}
        for k, fallback in ((1, 0.5), (2, 1.0), (3, 1.5)):
            estimable = n[1] and n[k]
            found = k - (k + 1) * (n[1] / (n[1] + 2 * n[2])) * n[k + 1] / n[k] if estimable else 0
            result[k] = found if 0 < found < k else fallback
        return result

    def probability(self, token, context):
        size = len(context) + 1
        counts = [self.counts[size][*context, other] for other in range(VOCAB_SIZE)]
        lower = self.probability(token, context[1:]) if context else 1 / VOCAB_SIZE
        if not sum(counts):
            return lower
        discounts = [self.discounts[size][min(count, 3)] for count in counts]
        return (counts[token] - discounts[token] + sum(discounts) * lower) / sum(counts)


@given(trainable, conversations)
def test_probabilities_are_those_of_dictionaries(train, texts):
    found = probabilities(train, texts)
    for order in range(1, MAX_ORDER + 1):
        twin = Twin(train, order)
        expected = [
            twin.probability(token, tuple(text[max(0, place + 1 - order) : place])) if place else 1
            for text in texts
            for place, token in enumerate(text)
        ]
        np.testing.assert_allclose(found[order - 1], expected, rtol=1e-12)


CONTEXTS = {"seen": [0, 1, 2, 3, 1, 2, 3, 1], "partly seen": [4, 4, 4, 4, 4, 1, 2, 3], "unseen": [4] * 8}


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
def test_probabilities_of_all_tokens_sum_to_one(context):
    train = [[0, 1, 2, 3, 1, 2, 3, 1, 1], [0, 2, 3, 1, 2], [0, 1]]
    found = probabilities(train, [[*context, token] for token in range(VOCAB_SIZE)])
    ends = found.reshape(MAX_ORDER, VOCAB_SIZE, len(context) + 1)[:, :, -1]
    np.testing.assert_allclose(ends.sum(axis=1), 1, rtol=1e-12)
    assert (ends > 0).all()


def split_of(*texts):
    """Conversations of bytes, or of names of control tokens."""
    tokenizer = byte_tokenizer()
    start = tokenizer.special["<|bos|>"]
    ids, offsets = encoded([[start, *(tokenizer.special.get(one, one) for one in text)] for text in texts])
    return EncodedSplit(ids, np.ones(len(ids), np.uint8), offsets)


CONTROLS = ["<|im_start|>", "<|im_end|>", "<|im_start|>", "<|im_start|>", "<|im_end|>", "<|im_end|>"]


@pytest.mark.parametrize(("validation", "order"), [(b"abcabcabcabc", 3), (b"cczz", 1)])
def test_the_order_is_the_best_on_the_text_of_validation(validation, order):
    """With the control tokens it would be 7."""
    tokenizer, train = byte_tokenizer(), split_of(b"xabcab", b"yabcab", b"abcabz", CONTROLS, CONTROLS)

    def nats(split):
        texts = (train.ids, train.offsets), (split.ids, split.offsets)
        return [*nats_by_order(*texts, len(tokenizer.token_bytes))]

    scored, text = split_of(b"cabd", b"ab"), split_of(validation)
    counted = CountedText(train, split_of(validation, CONTROLS))
    found = score_with_ngrams(counted, tokenizer, scored.ids, scored.offsets)
    assert found.order == order == 1 + np.argmin([one.sum() for one in nats(text)])
    assert found.train_tokens == len(train.ids)
    assert found.nats.tolist() == nats(scored)[order - 1].tolist()
