"""Where the training of a new model starts: its embedding and head already predict a token from the one before it.

The layers of a new model change nothing, so the logits after a token are products of its normalised row with the head's
rows. These are fitted to how often each token follows each other one in the training set, which takes seconds.

Shapes: N conversations, P different bigrams, X contexts of a step, V vocabulary.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from chatmill.model.chat_model import ChatModel, Decoder
from chatmill.training.packing import PackedDataset
from chatmill.training.precision import autocast
from chatmill.training.train_parameters import Precision

STEPS, RATE = 100, 0.02
_MAX_TOKENS = 1 << 25  # that are counted, of conversations drawn at random
_MAX_LOGITS = 1 << 24  # of a step: for a larger vocabulary its contexts are drawn
_BLOCK_LOGITS = 1 << 22  # that are held at once, with their gradients


class Bigrams(NamedTuple):
    """How often tokens follow each other, sorted by the first one."""

    first: NDArray[np.int64]  # (P,)
    second: NDArray[np.int64]  # (P,)
    weights: NDArray[np.float64]  # (P,), whose sum is 1


def can_start_from_bigrams(model: ChatModel) -> bool:
    """Whether a model has a table for its embedding, logits of tokens, and no chunks."""
    plain = type(model.model) is Decoder and not model.config.byte_head
    return plain and isinstance(model.model.embed_tokens, torch.nn.Embedding)


def count_bigrams(dataset: PackedDataset, seed: int) -> Bigrams:
    """The bigrams within conversations, each as often as the conversation is read in an epoch."""
    spans, ids = dataset.spans, dataset.split.ids
    order = np.random.default_rng(seed).permutation(len(spans.starts))
    chosen = order[: spans.lengths[order].cumsum().searchsorted(_MAX_TOKENS) + 1]
    lengths, factors = spans.lengths[chosen] - 1, dataset.span_factors()[chosen]
    places = np.arange(lengths.sum()) + np.repeat(spans.starts[chosen] - lengths.cumsum() + lengths, lengths)
    weights, size = np.repeat(factors, lengths), np.iinfo(ids.dtype).max + 1
    keys, inverse = np.unique(ids[places].astype(np.int64) * size + ids[places + 1], return_inverse=True)
    counts = np.bincount(inverse, weights)
    first, second = np.divmod(keys[counts > 0], size)
    return Bigrams(first, second, counts[counts > 0] / counts.sum())


def batches(bigrams: Bigrams, vocab_size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield contexts (X,) and the weights (X, V) of the tokens after them, whose sum is 1; all contexts, or some drawn.

    A context is drawn as often as it occurs.
    """
    contexts, starts = np.unique(bigrams.first, return_index=True)
    number, ends = min(len(contexts), max(1, _MAX_LOGITS // vocab_size)), np.append(starts[1:], len(bigrams.first))
    shares, random = np.add.reduceat(bigrams.weights, starts), np.random.default_rng(seed)
    while True:
        is_drawn = number < len(contexts)
        chosen = random.choice(len(contexts), number, p=shares) if is_drawn else np.arange(number)
        lengths = (ends - starts)[chosen]
        rows = np.repeat(np.arange(number), lengths)
        places = np.arange(len(rows)) + np.repeat(starts[chosen] - lengths.cumsum() + lengths, lengths)
        weights = bigrams.weights[places] / (shares[chosen] * number)[rows] if is_drawn else bigrams.weights[places]
        targets = torch.zeros(number, vocab_size)
        targets[torch.from_numpy(rows), torch.from_numpy(bigrams.second[places])] = torch.from_numpy(weights).float()
        batch = torch.from_numpy(contexts[chosen]), targets
        yield batch
        while not is_drawn:
            yield batch


def start_from_bigrams(model: ChatModel, bigrams: Bigrams, seed: int, precision: Precision) -> float:
    """Fit the embedding and head of a new model to the bigrams; return the mean nats of the second token in the end."""
    table = model.model.embed_tokens.weight
    head = table if model.config.tie_word_embeddings else model.lm_head.weight
    optimizer = torch.optim.Adam([table] if head is table else [table, head], lr=RATE)
    block, nats = max(1, _BLOCK_LOGITS // len(table)), 0.0
    for step, (contexts, targets) in zip(range(STEPS), batches(bigrams, len(table), seed), strict=False):
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / STEPS)
        optimizer.zero_grad()
        nats = sum(
            _backward(table, head, rows, weights, model.config.rms_norm_eps, precision)
            for rows, weights in zip(contexts.split(block), targets.split(block), strict=True)
        )
        optimizer.step()
    optimizer.zero_grad()
    return nats


def _backward(
    table: Tensor, head: Tensor, contexts: Tensor, targets: Tensor, eps: float, precision: Precision
) -> float:
    """Add to the gradients of (V, C) embedding and head what some of a step's contexts say; return their nats."""
    with autocast(table.device.type, precision):
        logits = F.linear(F.rms_norm(table[contexts], table.shape[1:], eps=eps), head)
    nats = -(targets * logits.float().log_softmax(1)).sum()
    nats.backward()
    return nats.item()
