"""How likely a model finds a token, and which tokens it finds likelier.

Shapes: V vocabulary.
"""

from typing import NamedTuple

import numpy as np

MIN_LOGPROB = -9999.0  # stands for the logarithm of 0, which JSON cannot express


class TokenLogprob(NamedTuple):
    """The log probability of a token, and those of the likeliest tokens at its position."""

    token: int
    logprob: float
    top_logprobs: list[tuple[int, float]]


def token_logprob(logits: np.ndarray, token: int, num_logprobs: int) -> TokenLogprob:
    """The log probability of a token from logits (V,), and those of the `num_logprobs` likeliest tokens."""
    scaled = logits - logits.max()
    scaled -= np.log(np.exp(scaled, dtype=np.float64).sum()).astype(np.float32)
    num_logprobs = min(num_logprobs, len(scaled))
    likeliest: list[int] = np.argpartition(-scaled, num_logprobs - 1)[:num_logprobs].tolist() if num_logprobs else []
    pairs = sorted(((i, float(scaled[i])) for i in likeliest), key=lambda pair: (-pair[1], pair[0]))
    return TokenLogprob(token, clamp_logprob(float(scaled[token])), [(i, clamp_logprob(value)) for i, value in pairs])


def clamp_logprob(value: float) -> float:
    """The value, or MIN_LOGPROB if it is less, as -inf is."""
    return max(value, MIN_LOGPROB)
