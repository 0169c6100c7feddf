"""How good predicted rows are, in numbers that tell learning from collapse.

A network that gives every token the same vector has a tiny squared error where rows are small, and a high cosine where
they have a large mean in common. So the errors here are held against those of that very answer.

Shapes: N tokens, C channels of a row, M tokens that are measured.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chatmill.soft_tokenizer.embedding_dataset import EmbeddingDataset

MIN_EXPLAINED_VARIANCE = (
    0.01  # of the variance of the rows that were learnt; with less, the network is as good as constant
)
MAX_MEASURED_TOKENS = 4096  # tokens whose nearest row is looked for


def compute_metrics(
    predicted: Tensor, dataset: EmbeddingDataset, train_mask: Tensor, eval_mask: Tensor
) -> dict[str, Any]:
    """What (N, C) are worth as rows of the `measured` (N,) tokens, by a network that was shown the `learnt` ones.

    The nearest row is looked for among all tokens', and, by its direction from the mean, among those of the measured
    alone: there no row that was shown, after which predictions are made, is in the way. `chance` is a guess's share.
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
    """The share of the variance of rows that predictions explain: 1 for all of it, 0 for the mean of the learnt rows.

    Below 0 they are worse than that mean; None where all rows are that mean, or none counts. `weights` (M,) say how
    much each of the measured `numbers` does.
    """
    missed = (predicted[numbers] - rows[numbers]).square().sum(dim=1)
    by_mean = (rows[train_mask].mean(dim=0) - rows[numbers]).square().sum(dim=1)
    variance = float((weights * by_mean).sum())
    return 1 - float((weights * missed).sum()) / variance if variance else None


def nearest_neighbor_accuracy(predicted: Tensor, rows: Tensor, numbers: Tensor) -> dict[str, float]:
    """How often the row that is nearest to a prediction is the token's own, by cosine and by dot product.

    Of many tokens, MOST_MEASURED are looked at, evenly spread.
    """
    sampled = numbers[:: -(-len(numbers) // MAX_MEASURED_TOKENS)]
    directions = F.normalize(rows, dim=1)
    right = {"cosine": 0, "dot": 0}
    for part in sampled.split(256):
        right["cosine"] += int(((predicted[part] @ directions.T).argmax(dim=1) == part).sum())
        right["dot"] += int(((predicted[part] @ rows.T).argmax(dim=1) == part).sum())
    return {name: count / len(sampled) for name, count in right.items()}


def nearest_neighbor_accuracy_among(found: Tensor, rows: Tensor) -> dict[str, float]:
    """How often, of (M, C), the row that is nearest by cosine is the token's own; of many, of MOST_MEASURED."""
    every = -(-len(rows) // MAX_MEASURED_TOKENS)
    likeness = F.normalize(found[::every], dim=1) @ F.normalize(rows[::every], dim=1).T
    right = likeness.argmax(dim=1) == torch.arange(len(likeness))
    return {"cosine": float(right.float().mean()), "chance": 1 / len(right)}


def has_collapsed(measures: dict[str, Any]) -> bool:
    """Whether a network is no better than a constant, even on the tokens that it was shown, of which these tell."""
    share = measures["variance_explained"]["plain"]
    return share is None or not share >= MIN_EXPLAINED_VARIANCE
