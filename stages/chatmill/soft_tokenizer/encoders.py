"""The network of a soft tokenizer, trained and measured: without the held-out tokens, and with all of them.

All but its last matrix is trained once, without them; that matrix is solved for twice. Two networks trained apart took
twice the time, and the one that had seen all tokens was no better plugged in.

Shapes: V vocabulary, N tokens of text, R of a row.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chatmill.soft_tokenizer.learning import FOR_ALL, FOR_STRANGERS, learn, predict, solve
from chatmill.soft_tokenizer.measures import has_collapsed, measure
from chatmill.soft_tokenizer.pairs import Pairs
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary
from chatmill.training.byte_encoder import ByteEncoder, ByteEncoderShape


@dataclass(frozen=True)
class Trained:
    """Pairs of tokens and rows, and what the network makes of them."""

    pairs: Pairs
    predicted: Tensor  # (N, R), by the network that has not seen the held-out pairs
    encoder: ByteEncoder  # whose last matrix is solved for with all of them
    rows: Tensor  # (N, R), by that one

    def measures(self) -> dict[str, dict[str, Any]]:
        """How good the rows are: of the kept and the held-out tokens, and of all, solved for with all."""
        kept, everything = ~self.pairs.held_out, torch.ones_like(self.pairs.held_out)
        return {
            "kept": measure(self.predicted, self.pairs, kept, kept),
            "held_out": measure(self.predicted, self.pairs, kept, self.pairs.held_out),
            "all": measure(self.rows, self.pairs, everything, everything),
        }


def train_encoders(
    vocabulary: Vocabulary,
    table: Tensor,
    counts: np.ndarray,
    shape: ByteEncoderShape,
    *,
    held_out: float,
    steps: int,
    contrast: float,
    seed: int,
) -> Trained:
    """Train a network on a model's table (V, R), whose tokens occur `counts` (V,) times in what it was trained on.

    Raises ValueError where there is nothing to learn from, or nothing is held out.
    """
    pairs = Pairs.of(vocabulary, table, counts, longest=shape.longest, held_out=held_out, seed=seed)
    without = learn(shape, pairs, ~pairs.held_out, ridge=FOR_STRANGERS, steps=steps, contrast=contrast, seed=seed)
    encoder = deepcopy(without)
    solve(encoder, pairs, torch.ones_like(pairs.held_out), FOR_ALL)
    return Trained(pairs, predict(without, pairs.spelled), encoder, predict(encoder, pairs.spelled))


def collapsed(measures: dict[str, dict[str, Any]]) -> bool:
    """Whether the network gives every token nearly the same row."""
    return has_collapsed(measures["kept"]) or has_collapsed(measures["all"])
