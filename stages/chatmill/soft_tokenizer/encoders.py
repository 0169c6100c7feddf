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

from chatmill.soft_tokenizer.embedding_dataset import EmbeddingDataset
from chatmill.soft_tokenizer.embedding_metrics import compute_metrics, has_collapsed
from chatmill.soft_tokenizer.encoder_training import RIDGE_ALL, RIDGE_HELD_OUT, fit_encoder, fit_last_layer, predict
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary
from chatmill.training.byte_encoder import ByteEncoder, ByteEncoderShape


@dataclass(frozen=True)
class TrainedEncoder:
    """Pairs of tokens and rows, and what the network makes of them."""

    dataset: EmbeddingDataset
    predicted: Tensor  # (N, R), by the network that has not seen the held-out pairs
    encoder: ByteEncoder  # whose last matrix is solved for with all of them
    predicted_with_all: Tensor  # (N, R), by that one

    def metrics(self) -> dict[str, dict[str, Any]]:
        """How good the rows are: of the kept and the held-out tokens, and of all, solved for with all."""
        trained, everything = ~self.dataset.held_out, torch.ones_like(self.dataset.held_out)
        return {
            "kept": compute_metrics(self.predicted, self.dataset, trained, trained),
            "held_out": compute_metrics(self.predicted, self.dataset, trained, self.dataset.held_out),
            "all": compute_metrics(self.predicted_with_all, self.dataset, everything, everything),
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
) -> TrainedEncoder:
    """Train a network on a model's table (V, R), whose tokens occur `counts` (V,) times in what it was trained on.

    Raises ValueError where there is nothing to learn from, or nothing is held out.
    """
    dataset = EmbeddingDataset.from_table(
        vocabulary, table, counts, longest=shape.longest, held_out=held_out, seed=seed
    )
    held_out_encoder = fit_encoder(
        shape, dataset, ~dataset.held_out, ridge=RIDGE_HELD_OUT, steps=steps, contrast=contrast, seed=seed
    )
    encoder = deepcopy(held_out_encoder)
    fit_last_layer(encoder, dataset, torch.ones_like(dataset.held_out), RIDGE_ALL)
    return TrainedEncoder(
        dataset, predict(held_out_encoder, dataset.byte_ids), encoder, predict(encoder, dataset.byte_ids)
    )


def collapsed(measures: dict[str, dict[str, Any]]) -> bool:
    """Whether the network gives every token nearly the same row."""
    return has_collapsed(measures["kept"]) or has_collapsed(measures["all"])
