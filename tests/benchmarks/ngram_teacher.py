"""A teacher that is counted: the predictions of an n-gram model as soft targets, which fade in the course of a run.

The model is counted on the whole training set, also what the run never reads, and predicts each token of it without
the token's own occurrence. Counts are discounted by a constant and interpolated with those of shorter contexts.

Shapes: N tokens of the training set, P distinct pairs of a context and the token after it, X distinct contexts,
K tokens of a prediction, B rows, T tokens of a row.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from learning import Chatmill, Count, Data
from torch import Tensor

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.conversation.template import LossKind
from chatmill.encoded.token_files import EncodedSplit

CONTEXTS = 4  # tokens of the longest context
KEPT = 8  # tokens of a prediction, the likeliest
DISCOUNT = 0.75
WEIGHT = 0.7  # of the teacher's prediction in the loss at first
END = 0.7  # of the run, where that weight has fallen to zero
_BLOCK = 200_000  # tokens that are predicted at once
_MULTIPLIERS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)  # of a hash


class Counts(NamedTuple):
    """The counts of all contexts of one length."""

    is_inside: np.ndarray  # (N,) bool: whether the context of this token lies in its conversation
    contexts: np.ndarray  # (N,) the context of each token
    own: np.ndarray  # (N,) how often the token follows its context
    totals: np.ndarray  # (X,) tokens after a context
    distinct: np.ndarray  # (X,) different tokens after it
    tokens: np.ndarray  # (X, K) the most frequent of these, -1 where there are fewer
    counts: np.ndarray  # (X, K)


def count_contexts(split: EncodedSplit) -> Iterator[Counts]:
    """The counts of contexts of one token, of two, and so on."""
    ids = split.ids.astype(np.uint64)
    places = np.arange(len(ids)) - np.repeat(split.offsets[:-1], np.diff(split.offsets))
    keys = np.zeros(len(ids), np.uint64)
    for length in range(1, CONTEXTS + 1):
        before = np.concatenate([np.zeros(length, np.uint64), ids[:-length]])
        keys = keys * _MULTIPLIERS[0] ^ (before + np.uint64(1)) * _MULTIPLIERS[1]
        keys ^= keys >> np.uint64(29)
        is_inside = places >= length
        yield count_pairs(np.where(is_inside, keys, np.uint64(0)), ids, is_inside)


def count_pairs(keys: np.ndarray, ids: np.ndarray, is_inside: np.ndarray) -> Counts:
    """The counts of the pairs of a context, named by its key (N,), and a token (N,)."""
    order = np.lexsort((ids, keys))
    sorted_keys, sorted_ids = keys[order], ids[order]
    is_pair = np.append(True, (np.diff(sorted_keys) != 0) | (np.diff(sorted_ids) != 0))
    starts = np.flatnonzero(is_pair)
    counts = np.diff(np.append(starts, len(ids)))  # (P,)
    is_context = np.append(True, np.diff(sorted_keys[starts]) != 0)
    firsts, of_pair = np.flatnonzero(is_context), np.cumsum(is_context) - 1
    distinct = np.diff(np.append(firsts, len(starts)))
    frequent = np.lexsort((-counts, of_pair))
    rank = np.arange(len(starts)) - np.repeat(firsts, distinct)
    kept, place = frequent[rank < KEPT], rank[rank < KEPT]
    tokens, most = np.full((len(firsts), KEPT), -1), np.zeros((len(firsts), KEPT), np.int64)
    tokens[of_pair[kept], place] = sorted_ids[starts[kept]]
    most[of_pair[kept], place] = counts[kept]
    pairs = np.empty(len(ids), np.int64)
    pairs[order] = np.cumsum(is_pair) - 1
    totals = np.add.reduceat(counts, firsts)
    return Counts(is_inside, of_pair[pairs], counts[pairs], totals, distinct, tokens, most)


def predict(split: EncodedSplit) -> tuple[np.ndarray, np.ndarray]:
    """(N, K) int64 tokens and their (N, K) float32 probabilities, of which the rest is for other tokens."""
    counted = list(count_contexts(split))
    blocks = [slice(start, start + _BLOCK) for start in range(0, len(split.ids), _BLOCK)]
    tokens, chances = zip(*(predict_block(counted, split.ids, block) for block in blocks), strict=True)
    return np.concatenate(tokens), np.concatenate(chances)


def predict_block(counted: list[Counts], ids: np.ndarray, block: slice) -> tuple[np.ndarray, np.ndarray]:
    """The predictions of a block of tokens, from the longest context to the shortest."""
    actual = ids[block].astype(np.int64)[:, None]
    rest = np.ones((len(actual), 1))
    candidates, chances = [], []
    for one in reversed(counted):
        context, tokens = one.contexts[block], one.tokens[one.contexts[block]]
        total = one.totals[context][:, None] - 1
        distinct = (one.distinct[context] - (one.own[block] == 1))[:, None]
        count = one.counts[context] - (tokens == actual)
        known = one.is_inside[block][:, None] & (total > 0)
        share = np.maximum(count - DISCOUNT, 0) / np.maximum(total, 1)
        candidates.append(tokens)
        chances.append(np.where(known & (tokens >= 0), rest * share, 0))
        rest = np.where(known, rest * DISCOUNT * distinct / np.maximum(total, 1), rest)
    return likeliest(np.concatenate(candidates, axis=1), np.concatenate(chances, axis=1))


def likeliest(tokens: np.ndarray, chances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The K likeliest tokens of each row; the chances of a token that occurs more than once are added up."""
    order = np.argsort(tokens, axis=1, kind="stable")
    tokens, chances = (np.take_along_axis(array, order, axis=1) for array in (tokens, chances))
    sums, is_last = chances.cumsum(axis=1), np.ones(tokens.shape, bool)
    is_last[:, :-1] = tokens[:, 1:] != tokens[:, :-1]
    before = np.zeros_like(sums)
    before[:, 1:] = np.maximum.accumulate(np.where(is_last, sums, 0), axis=1)[:, :-1]
    chances = np.where(is_last, sums - before, 0)
    top = np.argpartition(-chances, KEPT - 1, axis=1)[:, :KEPT]
    tokens, chances = (np.take_along_axis(array, top, axis=1) for array in (tokens, chances))
    return np.maximum(tokens, 0), chances.astype(np.float32)


class Taught(Chatmill):
    """Chatmill with the teacher's predictions in the loss."""

    def __init__(self, data: Data, config: ModelConfig, seconds: float, typical: float = 0.1, **options: Any) -> None:
        super().__init__(data, config, seconds, typical, **options)
        self.tokens, self.chances = (torch.from_numpy(array) for array in predict(data.train))
        numbered = data.train._replace(ids=np.arange(len(data.train.ids)))
        self.numbers = replace(self.dataset, split=numbered)  # the index of each token in place of its id
        self.weight = 0.0
        self.model.nats = self.nats

    def step(self, done: int, steps: int) -> Count:
        rows = [next(self.rows) for _ in range(self.rows_per_step)]
        (batch,), (numbers,) = (dataset.batches(rows, self.rows_per_step) for dataset in (self.dataset, self.numbers))
        is_target = torch.from_numpy(batch.loss != LossKind.IGNORED).flatten()
        self.targets = torch.from_numpy(numbers.targets).flatten().where(is_target, 0)
        self.chances_of_target = self.chances[self.targets] * is_target[:, None]
        self.weight, self.trainer.steps = max(0.0, WEIGHT * (1 - done / (END * steps))), steps
        self.trainer.step([batch])
        return Count(int((batch.conversation_ids >= 0).sum()), batch.ids.size)

    def nats(self, ids: Tensor, positions: Tensor, mask: Tensor, targets: Tensor) -> tuple[Tensor, None]:
        """The loss (B, T) of targets that are in part the teacher's; what it leaves to other tokens is the token's."""
        table = self.model.model.embed_tokens.weight
        x, _ = self.model._hidden_states(ids, table, positions, mask, None, last_only=False)
        logits = F.linear(x, table).float().flatten(0, 1).log_softmax(-1)
        nats = -logits.gather(1, targets.flatten()[:, None])[:, 0]
        of_teacher = -(self.chances_of_target * logits.gather(1, self.tokens[self.targets])).sum(1)
        own = 1 - self.weight * self.chances_of_target.sum(1)
        return (own * nats + self.weight * of_teacher).view(targets.shape), None
