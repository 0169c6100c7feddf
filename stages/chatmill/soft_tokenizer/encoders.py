"""Training and metrics of a soft tokenizer's network, without the held-out tokens and with all of them.

All but its last layer is trained once, without the held-out tokens; the last layer is fitted twice. Training two
networks took twice the time, and the one trained on all tokens was no better when plugged in.

Shapes: V vocabulary, N text tokens, R channels of a row.
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
    """The dataset, the trained network, and its predictions."""

    dataset: EmbeddingDataset
    predicted: Tensor  # (N, R), by the network fitted without the held-out tokens
    encoder: ByteEncoder  # its last layer is fitted to all tokens
    predicted_with_all: Tensor  # (N, R), by `encoder`

    def metrics(self) -> dict[str, dict[str, Any]]:
        """The metrics of the training tokens, of the held-out ones, and of all with the network fitted to all."""
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
    """Train a network on a model's table (V, R), whose tokens occur `counts` (V,) times in its training data.

    Raises ValueError for empty tokens, and if no token or every token is held out.
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
