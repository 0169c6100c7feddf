"""Bits per byte: how many bits a model needs for a byte of text, comparable between tokenizers.

    bits_per_byte = nats of the scored tokens / (ln 2 * bytes of exactly those tokens)

Both sums run over all conversations (pooled). Control tokens are part of the context, but of neither sum. The bytes are
those of the text itself: a backslash by which ChatML escapes it costs nats, but is none of them. A conversation longer
than the model's context is scored in windows, each token once.

PyTorch is imported only for a model that runs in it, so that exports can be scored where it is not installed.

Shapes: T tokens of a window, V vocabulary.
"""

import json
import lzma
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from chatmill.pipeline.progress import progress

if TYPE_CHECKING:
    from chatmill.model.chat_model import ChatModel

LOGIT_ROWS = 1024  # at a time, since each takes twice its memory while it is summed
BATCH_LOGITS = {"cpu": 2**21, "cuda": 2**27}  # 8 MB on a CPU, where eight times as many took 1.5 times as long
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


class LogitsEngine(Protocol):
    """What scoring needs of an engine, so that it depends on none."""

    @property
    def name(self) -> str: ...
    def sequence_logits(self, ids: Sequence[int], /) -> np.ndarray: ...


def make_scorer(engine: LogitsEngine) -> WindowScorer:
    """A scorer in batches for the project's own network, or of one window at a time for other engines."""
    if (network := getattr(engine, "model", None)) is not None:
        return make_batch_scorer(network)
    return lambda windows: [
        nats_of_logits(engine.sequence_logits(ids[:-1].tolist()), ids)
        for ids in progress(windows, engine.name, unit="text")
    ]


def make_batch_scorer(model: "ChatModel") -> WindowScorer:
    """A scorer that batches windows of similar length; padding comes last, where causal attention ignores it."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    device = model.model.embed_tokens.weight.device
    max_logits = BATCH_LOGITS.get(device.type, BATCH_LOGITS["cpu"])

    @torch.inference_mode()
    def score_windows(windows: list[Ids]) -> list[np.ndarray]:
        result = [np.empty(0)] * len(windows)
        groups = group_by_size([len(ids) * model.config.vocab_size for ids in windows], max_logits)
        for group in progress(groups, "pytorch", unit="batch"):
            rows = [torch.from_numpy(windows[index].astype(np.int64)) for index in group]
            ids = pad_sequence(rows, batch_first=True).to(device)
            nats, _ = model.nats(ids[:, :-1], None, None, ids[:, 1:])
            for index, row in zip(group, nats.double().cpu().numpy(), strict=True):
                result[index] = row[: len(windows[index]) - 1]
        return result

    return score_windows


def group_by_size(sizes: list[int], max_size: int) -> list[list[int]]:
    """Indices in groups by size; a group padded to its largest size fits into `max_size`, or has one index."""
    result: list[list[int]] = []
    for index in sorted(range(len(sizes)), key=sizes.__getitem__):
        if not result or (len(result[-1]) + 1) * sizes[index] > max_size:
            result.append([])
        result[-1].append(index)
    return result


def nats_of_logits(logits: np.ndarray, ids: Ids) -> np.ndarray:
    """(T - 1, V), (T,) -> (T - 1,) float64: nats of each token after the first, given the logits before it.

    Logits after the last token, as in (T, V), are not needed.
    """
    targets, result = ids[1:], [np.empty(0)]
    for start in range(0, len(targets), LOGIT_ROWS):
        some = targets[start : start + LOGIT_ROWS]
        rows = logits[start : start + len(some)].astype(np.float64)
        rows -= rows.max(axis=1, keepdims=True)
        result.append(np.log(np.exp(rows).sum(axis=1)) - rows[np.arange(len(rows)), some])
    return np.concatenate(result)


def rounded(metrics: Any) -> Any:
    """Metrics as they are read from JSON, with six decimals of each number that is no integer."""
    return json.loads(json.dumps(metrics), parse_float=lambda text: round(float(text), 6))
