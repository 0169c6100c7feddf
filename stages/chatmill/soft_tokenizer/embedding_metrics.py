"""Metrics of predicted rows, which distinguish learning from collapse.

A network that gives every token the same vector has a tiny squared error if rows are small, and a high cosine if they
share a large mean. So errors are compared with those of a constant prediction.

Shapes: N tokens, C channels of a row, M tokens that are measured.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chatmill.soft_tokenizer.embedding_dataset import EmbeddingDataset

MIN_EXPLAINED_VARIANCE = 0.01  # share for the training rows; with less, the network counts as constant
MAX_MEASURED_TOKENS = 4096  # tokens whose nearest row is searched


def compute_metrics(
    predicted: Tensor, dataset: EmbeddingDataset, train_mask: Tensor, eval_mask: Tensor
) -> dict[str, Any]:
    """Metrics of `predicted` (N, C) on the tokens of `eval_mask` (N,), for a network trained on `train_mask` (N,).

    The nearest row is searched among all tokens and, by its direction from the mean, among the measured tokens alone,
    where no training row competes. `chance` is the accuracy of a random guess.
    """
    numbers = eval_mask.nonzero()[:, 0]
    predictions, rows, mean = predicted[numbers], dataset.rows[numbers], dataset.rows[train_mask].mean(dim=0)
    return {
        "tokens": len(numbers),
        "nearest": nearest_neighbor_accuracy(predicted, dataset.rows, numbers) | {"chance": 1 / len(dataset.rows)},
        "nearest_of_these": nearest_neighbor_accuracy_among(predictions - mean, rows - mean),
        "mean_cosine": float(F.cosine_similarity(predictions, rows).mean()),
        "variance_explained": {
            "plain": explained_variance(predicted, dataset.rows, torch.ones(len(rows)), train_mask, numbers),
            "by_use": explained_variance(predicted, dataset.rows, dataset.counts[numbers], train_mask, numbers),
        },
        "norm_ratio": float(predictions.norm(dim=1).mean() / rows.norm(dim=1).mean()),
    }


def explained_variance(
    predicted: Tensor, rows: Tensor, weights: Tensor, train_mask: Tensor, numbers: Tensor
) -> float | None:
    """The share of the variance of rows that predictions explain: 1 for all of it, 0 for the mean of the training rows.

    It is negative if they are worse than that mean, and None if all rows equal that mean or all weights are 0.
    `weights` (M,) are those of the measured tokens, `numbers`.
    """
    errors = (predicted[numbers] - rows[numbers]).square().sum(dim=1)
    mean_errors = (rows[train_mask].mean(dim=0) - rows[numbers]).square().sum(dim=1)
    variance = float((weights * mean_errors).sum())
    return 1 - float((weights * errors).sum()) / variance if variance else None


def nearest_neighbor_accuracy(predicted: Tensor, rows: Tensor, numbers: Tensor) -> dict[str, float]:
    """How often the row that is nearest to a prediction is the token's own, by cosine and by dot product.

    At most MAX_MEASURED_TOKENS tokens are measured, evenly spread.
    """
    sampled = numbers[:: -(-len(numbers) // MAX_MEASURED_TOKENS)]
    directions = F.normalize(rows, dim=1)
    right = {"cosine": 0, "dot": 0}
    for part in sampled.split(256):
        right["cosine"] += int(((predicted[part] @ directions.T).argmax(dim=1) == part).sum())
        right["dot"] += int(((predicted[part] @ rows.T).argmax(dim=1) == part).sum())
    return {name: count / len(sampled) for name, count in right.items()}


def nearest_neighbor_accuracy_among(predictions: Tensor, rows: Tensor) -> dict[str, float]:
    """How often, of (M, C), the row nearest by cosine is the token's own; at most MAX_MEASURED_TOKENS are measured."""
    every = -(-len(rows) // MAX_MEASURED_TOKENS)
    similarity = F.normalize(predictions[::every], dim=1) @ F.normalize(rows[::every], dim=1).T
    right = similarity.argmax(dim=1) == torch.arange(len(similarity))
    return {"cosine": float(right.float().mean()), "chance": 1 / len(right)}


def has_collapsed(measures: dict[str, Any]) -> bool:
    """Whether a network is no better than a constant, by its metrics on the tokens that it was trained on."""
    share = measures["variance_explained"]["plain"]
    return share is None or not share >= MIN_EXPLAINED_VARIANCE
