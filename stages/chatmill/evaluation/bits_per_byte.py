"""Bits per byte: how many bits a model needs for a byte of text, comparable between tokenizers.

    bits_per_byte = nats of the scored tokens / (ln 2 * bytes of exactly those tokens)

Both sums run over all conversations (pooled). Control tokens are part of the context, but of neither sum. The bytes are
those of the text itself: a backslash by which ChatML escapes it costs nats, but is none of them. A conversation longer
than the model's context is scored in windows, each token once.

Shapes: T tokens of a window, V vocabulary.
"""

import lzma
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

LOGIT_ROWS = 1024  # at a time, since each takes twice its memory while it is summed
Ids = np.ndarray  # (T,) integers
WindowScorer = Callable[[list[Ids]], list[np.ndarray]]
"""Maps windows of ids to the nats of all tokens but the first: (T,) -> (T - 1,). The model does not read the last."""


def bits_per_byte(nats: float, num_bytes: int) -> float | None:
    """Bits per byte; None for zero bytes."""
    return nats / (math.log(2) * num_bytes) if num_bytes else None


def baselines(text: bytes) -> dict[str, float | None]:
    """Bits per byte of baselines: a uniform distribution, byte frequencies, and the compressor xz."""
    if not text:
        return {"uniform": None, "order0": None, "xz": None}
    shares = [count / len(text) for count in Counter(text).values()]
    return {
        "uniform": 8.0,
        "order0": -sum(share * math.log2(share) for share in shares) + 0.0,
        "xz": 8 * len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) / len(text),
    }


def sliding_windows(length: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(start, scored, end) of each window: the model reads tokens [start, end - 1) and predicts [scored, end).

    It reads at most `context` tokens. The first window predicts as many, each other one `stride` tokens, which have at
    least `context - stride` tokens and one before them. The first token has no context and is not scored. With a
    stride of one context these are the windows of lm-evaluation-harness (lm_eval/utils.py, get_rolling_token_windows).
    """
    scored = 1
    while scored < length:
        end = min(length, scored + (context if scored == 1 else stride))
        yield max(0, end - context - 1), scored, end
        scored = end


def default_stride(context: int) -> int:
    """Half a context, so that each token but the first ones of a text has at least half a context before it."""
    return context // 2


def token_nats(
    conversations: Sequence[Ids], context: int, score_windows: WindowScorer, stride: int | None = None
) -> list[np.ndarray]:
    """The nats of each token of each conversation, (T,) float64; 0 for the first."""
    if context < 2:
        raise ValueError(f"context: expected 2 tokens or more, got {context}")
    stride = default_stride(context) if stride is None else stride
    if not 1 <= stride <= context:
        raise ValueError(f"stride: expected 1 to {context} tokens, which the model reads at once, got {stride}")
    places = [
        (index, *window)
        for index, ids in enumerate(conversations)
        for window in sliding_windows(len(ids), context, stride)
    ]
    scores = score_windows([conversations[index][start:end] for index, start, _, end in places])
    result = [np.zeros(len(ids)) for ids in conversations]
    for (index, start, scored, end), nats in zip(places, scores, strict=True):
        result[index][scored:end] = nats[scored - start - 1 :]
    return result


def nats_of_logits(logits: np.ndarray, ids: Ids) -> np.ndarray:
    """(T - 1, V), (T,) -> (T - 1,) float64: nats of each token after the first, given the logits before it.

    Logits after the last token, as in (T, V), are not needed.
    """
    slices = [slice(start, start + LOGIT_ROWS) for start in range(0, len(ids) - 1, LOGIT_ROWS)]
    before = logits[: len(ids) - 1]
    return np.concatenate([np.empty(0), *(_nats(before[rows], ids[1:][rows]) for rows in slices)])


def _nats(logits: np.ndarray, targets: Ids) -> np.ndarray:
    """(T, V), (T,) -> (T,) float64."""
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    nats: np.ndarray = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(logits)), targets]
    return nats


def rounded(value: Any, digits: int = 6) -> Any:
    """A number, or all numbers in nested dictionaries and tuples, rounded to `digits` decimals."""
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(rounded(item, digits) for item in value)
    return round(value, digits) if isinstance(value, float) else value
