"""Bits per byte: what a model needs for each byte of text, a measure that no tokenizer can flatter.

    bits_per_byte = nats of the scored tokens / (ln 2 * bytes of exactly those tokens)

Sums run over all conversations before they are divided (pooled). Control tokens condition what follows them, but are in
neither sum. A conversation that is longer than the model's context is scored in windows (`windows`): every token once.

Shapes: T tokens of a window, V vocabulary.
"""

import lzma
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

LOGIT_ROWS = 1024  # of logits at a time, which take twice the memory while they are added up
Ids = np.ndarray  # (T,) integers
WindowScorer = Callable[[list[Ids]], list[np.ndarray]]
"""From windows of ids to the nats of all their tokens but the first: (T,) -> (T - 1,)."""


def bits_per_byte(nats: float, num_bytes: int) -> float | None:
    """Bits for each byte; None where there are no bytes."""
    return nats / (math.log(2) * num_bytes) if num_bytes else None


def baselines(text: bytes) -> dict[str, float | None]:
    """Bits per byte of methods that know nothing of chats: no model, frequencies of bytes, a general compressor."""
    if not text:
        return {"uniform": None, "order0": None, "xz": None}
    shares = [count / len(text) for count in Counter(text).values()]
    return {
        "uniform": 8.0,
        "order0": -sum(share * math.log2(share) for share in shares) + 0.0,
        "xz": 8 * len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) / len(text),
    }


def sliding_windows(length: int, context: int) -> Iterator[tuple[int, int, int]]:
    """(start, scored, end) of each window: tokens [start, end) are read, those of [scored, end) are scored.

    Windows follow one another by half a context, so that beyond the first every token is scored with at least half a
    context before it. The first token has nothing before it and is scored by none.
    """
    scored = 1
    while scored < length:
        end = min(length, context if scored == 1 else scored + context // 2)
        yield max(0, end - context), scored, end
        scored = end


def token_nats(conversations: Sequence[Ids], context: int, score_windows: WindowScorer) -> list[np.ndarray]:
    """The nats of each token of each conversation, (T,) float64; 0 for the first."""
    if context < 2:
        raise ValueError(f"a context of {context} tokens predicts nothing: it takes 2 or more")
    places = [
        (index, *window) for index, ids in enumerate(conversations) for window in sliding_windows(len(ids), context)
    ]
    scores = score_windows([conversations[index][start:end] for index, start, _, end in places])
    result = [np.zeros(len(ids)) for ids in conversations]
    for (index, start, scored, end), nats in zip(places, scores, strict=True):
        result[index][scored:end] = nats[scored - start - 1 :]
    return result


def nats_of_logits(logits: np.ndarray, ids: Ids) -> np.ndarray:
    """(T, V), (T,) -> (T - 1,) float64: what each token after the first costs, given the logits before it."""
    stretches = [slice(start, start + LOGIT_ROWS) for start in range(0, len(ids) - 1, LOGIT_ROWS)]
    return np.concatenate([np.empty(0), *(_nats(logits[:-1][rows], ids[1:][rows]) for rows in stretches)])


def _nats(logits: np.ndarray, targets: Ids) -> np.ndarray:
    """(T, V), (T,) -> (T,) float64."""
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    nats: np.ndarray = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(logits)), targets]
    return nats
