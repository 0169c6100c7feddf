"""Training of the network from bytes to embeddings on the rows of a trained model.

Shapes: N tokens, L positions in a token, F features with a constant one, C channels of a row.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chatmill.model.chat_model import initialise
from chatmill.model.layers import Layer
from chatmill.pipeline.progress import progress
from chatmill.soft_tokenizer.embedding_dataset import EmbeddingDataset
from chatmill.training.byte_encoder import PAD_SYMBOL, ByteEncoder, ByteEncoderShape
from chatmill.training.optimizer import Muon, learning_rate_factor

BATCH_SIZE = 256  # tokens of a step
TEMPERATURE = 0.1  # of the contrastive loss
RIDGE_HELD_OUT, RIDGE_ALL = None, 1e-4  # None: choose on validation tokens; 1e-4: almost no regularisation
RIDGE_CANDIDATES = (0.01, 0.1, 1.0, 3.0, 10.0, 30.0, 100.0)  # tried on validation tokens
VALIDATION_DIVISOR = 10  # one token in so many is for validation, to choose the ridge
MATRICES_RATE, OTHERS_RATE = 0.02, 0.01  # learning rates


def fit_encoder(
    shape: ByteEncoderShape,
    dataset: EmbeddingDataset,
    chosen: Tensor,
    *,
    steps: int,
    contrast: float,
    ridge: float | None,
    seed: int,
) -> ByteEncoder:
    """A network trained on the `chosen` (N,) tokens and no others; the same one each time.

    The network is trained by gradient steps, and its last layer is then fitted by ridge regression. If `ridge` is None,
    some of the chosen tokens are used for validation, and the ridge that predicts them best is used.
    """
    encoder = ByteEncoder(shape, dataset.rows.shape[1])
    initialise(encoder, seed)
    matrices, others = _split_parameters(encoder)
    optimizers = [
        (Muon(matrices, MATRICES_RATE, torch.float32), MATRICES_RATE),
        (torch.optim.AdamW(others, lr=OTHERS_RATE, betas=(0.9, 0.95), weight_decay=0.0), OTHERS_RATE),
    ]
    fit_mask = chosen if ridge is not None else chosen & ~_validation_mask(chosen, seed)
    targets, weights = _standardised(dataset, fit_mask), dataset.weights
    batches = _batches(dataset, fit_mask, seed)
    for step in progress(range(steps), "train_soft_tokenizer", unit="step"):
        batch = next(batches)
        predicted = encoder(_trim_padding(dataset.byte_ids[batch]))
        embedding_loss(predicted, targets[batch], weights[batch], contrast).backward()
        for optimizer, full_rate in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = full_rate * learning_rate_factor(step, steps)
            optimizer.step()
            optimizer.zero_grad()
    fit_last_layer(
        encoder, dataset, chosen, best_ridge(encoder, dataset, fit_mask, chosen & ~fit_mask) if ridge is None else ridge
    )
    return encoder.eval()


def embedding_loss(predicted: Tensor, rows: Tensor, weights: Tensor, contrast: float) -> Tensor:
    """The weighted mean of the squared distance of (N, C) to (N, C) and, times `contrast`, of a contrastive loss.

    The latter is the cross-entropy of finding the right row by its direction (arXiv:1807.03748).
    """
    distance = (predicted - rows).square().mean(dim=1)
    similarity = F.normalize(predicted, dim=1) @ F.normalize(rows, dim=1).T / TEMPERATURE
    contrastive = F.cross_entropy(similarity, torch.arange(len(rows)), reduction="none")
    return (weights * (distance + contrast * contrastive)).mean()


@torch.no_grad()
def fit_last_layer(encoder: ByteEncoder, dataset: EmbeddingDataset, chosen: Tensor, ridge: float) -> None:
    """Fit the last layer to the chosen rows by ridge regression; `ridge` is relative to the features' mean square.

    The bias column is not penalised, so that an unknown token gets the mean row.
    """
    encoder.embed_out.weight.copy_(_solve_ridge(*_normal_equations(encoder, dataset, chosen), ridge).T)


@torch.no_grad()
def best_ridge(encoder: ByteEncoder, dataset: EmbeddingDataset, fit_mask: Tensor, validation_mask: Tensor) -> float:
    """The ridge that, fitted on `fit_mask` (N,), predicts the rows of `validation_mask` (N,) best."""
    moments = _normal_equations(encoder, dataset, fit_mask)
    features = _features(encoder, dataset.byte_ids[validation_mask])

    def squared_error(ridge: float) -> float:
        distances = (features @ _solve_ridge(*moments, ridge) - dataset.rows[validation_mask]).square().sum(dim=1)
        return float((dataset.weights[validation_mask] * distances).sum())

    return min(RIDGE_CANDIDATES, key=squared_error)


@torch.no_grad()
def predict(encoder: ByteEncoder, spelled: Tensor) -> Tensor:
    """(N, L) -> (N, C): the rows that the network predicts, computed in batches."""
    return torch.cat([encoder(part) for part in spelled.split(BATCH_SIZE)])


def _features(encoder: ByteEncoder, spelled: Tensor) -> Tensor:
    """(N, L) -> (N, F) float64: the input of the last layer."""
    return torch.cat([encoder.encode(part) for part in spelled.split(BATCH_SIZE)]).double()


def _normal_equations(encoder: ByteEncoder, dataset: EmbeddingDataset, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """(F, F) and (F, C): the normal equations of weighted least squares."""
    features = _features(encoder, dataset.byte_ids[chosen])
    weighted = (features * dataset.weights[chosen, None]).T
    return weighted @ features, weighted @ dataset.rows[chosen].double()


def _solve_ridge(moments: Tensor, products: Tensor, ridge: float) -> Tensor:
    """(F, C): the solution of the normal equations with a ridge."""
    penalty = moments.diagonal()[:-1].mean() * ridge * torch.ones(len(moments), dtype=torch.float64)
    penalty[-1] = 0
    solution: Tensor = torch.linalg.solve(moments + penalty.diag(), products)
    return solution


def _validation_mask(chosen: Tensor, seed: int) -> Tensor:
    """(N,) bool: one in VALIDATION_DIVISOR of the chosen tokens, but at least one."""
    order = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(seed))
    numbers = order[chosen[order]]
    return torch.zeros_like(chosen).index_fill(0, numbers[: -(-len(numbers) // VALIDATION_DIVISOR)], True)


def _split_parameters(encoder: ByteEncoder) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The matrices inside the network, and all other weights."""
    layers = [module for module in encoder.modules() if isinstance(module, Layer)]
    within: list[nn.Module] = [*layers, encoder.gate_proj, encoder.up_proj]
    matrices = [weight for module in within for weight in module.parameters() if weight.ndim == 2]
    return matrices, [weight for weight in encoder.parameters() if not any(weight is matrix for matrix in matrices)]


def _standardised(dataset: EmbeddingDataset, chosen: Tensor) -> Tensor:
    """All rows, minus the mean of the chosen ones, in units of their standard deviation."""
    rows, weights = dataset.rows[chosen], dataset.weights[chosen, None]
    mean = (weights * rows).sum(dim=0) / weights.sum()
    return (dataset.rows - mean) / (rows - mean).square().mean().sqrt().clamp(min=1e-12)


def _batches(dataset: EmbeddingDataset, chosen: Tensor, seed: int) -> Iterator[Tensor]:
    """Endless batches of indices of chosen tokens of similar length, shuffled anew in each epoch."""
    generator = torch.Generator().manual_seed(seed)
    lengths = (dataset.byte_ids != PAD_SYMBOL).sum(dim=1)
    numbers = chosen.nonzero()[:, 0]
    while True:
        mixed = numbers[torch.randperm(len(numbers), generator=generator)]
        parts = mixed[lengths[mixed].argsort(stable=True)].split(BATCH_SIZE)
        for i in torch.randperm(len(parts), generator=generator):
            yield parts[i]


def _trim_padding(spelled: Tensor) -> Tensor:
    """The tokens without the columns that are padding in all of them."""
    return spelled[:, : int((spelled != PAD_SYMBOL).sum(dim=1).max())]
