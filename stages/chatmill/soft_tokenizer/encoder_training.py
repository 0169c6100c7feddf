"""Trains the network from bytes to embeddings on the rows of a trained model, and measures its rows.

Shapes: V vocabulary, N text tokens, L positions in a token, C channels of a row.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import BaseModel, Field, NonNegativeFloat
from torch import Tensor, nn

from chatmill.model.chat_model import initialise
from chatmill.model.layers import Layer
from chatmill.pipeline.params_file import NonNegativeInt, PositiveInt
from chatmill.pipeline.progress import log, progress
from chatmill.soft_tokenizer.byte_embedding import PAD_SYMBOL, ByteEncoder, ByteEncoderShape, spell_tokens
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary
from chatmill.training.optimizer import Muon, learning_rate_factor


class SoftTokenizerParameters(BaseModel, extra="forbid", frozen=True):
    """The network, its training and its evaluation; params.yaml describes each parameter."""

    width: Annotated[int, Field(gt=0, multiple_of=32)]
    layers: PositiveInt
    features: PositiveInt
    longest: PositiveInt  # bytes of a token
    steps: PositiveInt
    contrast: NonNegativeFloat
    held_out: Annotated[float, Field(gt=0, lt=1)]
    conversations: PositiveInt
    noise: bool
    tune: NonNegativeInt  # steps
    other_tokenizer: Path | None
    seed: NonNegativeInt
    threads: PositiveInt


# The training data of the soft tokenizer: the bytes of each text token, and its row in a trained model.

COUNTED_AT_ONCE = 1 << 24  # ids, each of which takes eight bytes while they are counted
_PRIOR = 3000  # added to the count of each token; with 10, held-out rows were predicted worse


def count_tokens(ids: NDArray[Any], vocab_size: int) -> NDArray[np.int64]:
    """(V,): how often each id occurs, counted in parts: the ids may be larger than memory."""
    counts = np.zeros(vocab_size, np.int64)
    for start in range(0, len(ids), COUNTED_AT_ONCE):
        counts += np.bincount(ids[start : start + COUNTED_AT_ONCE], minlength=vocab_size)
    return counts


@dataclass(frozen=True)
class EmbeddingDataset:
    """The text tokens, without control and unused ones: their bytes, and their rows in a model."""

    ids: Tensor  # (N,) int64
    byte_ids: Tensor  # (N, L) int64
    rows: Tensor  # (N, C) float32
    counts: Tensor  # (N,) float32, how often each occurs in the model's training data
    held_out: Tensor  # (N,) bool
    num_truncated: int  # tokens of which only the beginning is read

    @classmethod
    def from_table(
        cls, vocabulary: Vocabulary, table: Tensor, counts: np.ndarray, *, longest: int, held_out: float, seed: int
    ) -> "EmbeddingDataset":
        """The dataset of a model's table (V, C), whose tokens occur `counts` (V,) times in its training data.

        Raises ValueError for empty tokens, and if no token or every token is held out.
        """
        ids = [*vocabulary.text_ids]
        tokens, kinds = [vocabulary.tokens[i] for i in ids], [vocabulary.kinds[i] for i in ids]
        chosen = torch.tensor([is_held_out(*entry, held_out, seed) for entry in zip(tokens, kinds, strict=True)])
        if not 0 < int(chosen.sum()) < len(ids):
            raise ValueError(
                f"held_out = {held_out}: {int(chosen.sum())} of {len(ids)} text tokens are held out: expected at least "
                f"one, and not all: change held_out or the seed"
            )
        return cls(
            ids=torch.tensor(ids),
            byte_ids=spell_tokens(tokens, kinds, longest),
            rows=table[ids],
            counts=torch.from_numpy(counts[ids]).float(),
            held_out=chosen,
            num_truncated=sum(len(token) > longest for token in tokens),
        )

    @property
    def weights(self) -> Tensor:
        """(N,) float32: the weight of each row in training. Rows of rare tokens are mostly noise."""
        weights = (self.counts + _PRIOR).sqrt()
        return weights / weights.mean()


def is_held_out(token: bytes, kind: Kind, share: float, seed: int) -> bool:
    """Whether a token is held out: its hash decides, independent of all other tokens."""
    digest = hashlib.blake2b(token, digest_size=8, key=b"%d %d" % (seed, kind)).digest()
    return int.from_bytes(digest, "big") / 2**64 < share


# Metrics of predicted rows, which distinguish learning from collapse.

MIN_EXPLAINED_VARIANCE = 0.01  # share for the training rows; with less, the network counts as constant
MAX_MEASURED_TOKENS = 4096  # tokens whose nearest row is searched


def compute_metrics(
    predicted: Tensor, dataset: EmbeddingDataset, train_mask: Tensor, eval_mask: Tensor
) -> dict[str, Any]:
    """Metrics of `predicted` (N, C) on the tokens of `eval_mask` (N,), for a network trained on `train_mask` (N,).

    The nearest row is searched among all tokens and, by its direction from the mean, among the measured tokens alone,
    where no training row competes; of more than MAX_MEASURED_TOKENS for evenly spread ones. `chance` is the accuracy of
    a random guess. `variance_explained` is 1 for all of the variance of rows, 0 for that which the mean of the training
    rows explains, negative for less, and None if all rows equal that mean, or no measured token occurs.
    """
    numbers = eval_mask.nonzero()[:, 0]
    predictions, rows, mean = predicted[numbers], dataset.rows[numbers], dataset.rows[train_mask].mean(dim=0)
    errors, spread = ((one - rows).square().sum(dim=1) for one in (predictions, mean))
    every = -(-len(numbers) // MAX_MEASURED_TOKENS)
    among = F.normalize((predictions - mean)[::every], dim=1) @ F.normalize((rows - mean)[::every], dim=1).T
    is_nearest = among.argmax(dim=1) == torch.arange(len(among))

    def explained(weights: Tensor) -> float | None:
        variance = float((weights * spread).sum())
        return 1 - float((weights * errors).sum()) / variance if variance else None

    return {
        "tokens": len(numbers),
        "nearest": nearest_neighbor_accuracy(predicted, dataset.rows, numbers[::every]),
        "nearest_of_these": {"cosine": float(is_nearest.float().mean()), "chance": 1 / len(is_nearest)},
        "mean_cosine": float(F.cosine_similarity(predictions, rows).mean()),
        "variance_explained": {"plain": explained(torch.ones(len(rows))), "by_use": explained(dataset.counts[numbers])},
        "norm_ratio": float(predictions.norm(dim=1).mean() / rows.norm(dim=1).mean()),
    }


def nearest_neighbor_accuracy(predicted: Tensor, rows: Tensor, numbers: Tensor) -> dict[str, float]:
    """How often the row that is nearest to a prediction is the token's own, by cosine and by dot product."""
    result = {}
    for name, others in (("cosine", F.normalize(rows, dim=1)), ("dot", rows)):
        right = sum(int(((predicted[part] @ others.T).argmax(dim=1) == part).sum()) for part in numbers.split(256))
        result[name] = right / len(numbers)
    return result | {"chance": 1 / len(rows)}


# Training of the network from bytes to embeddings on the rows of a trained model.

BATCH_SIZE = 256  # tokens of a step
TEMPERATURE = 0.1  # of the contrastive loss
RIDGE_ALL = 1e-4  # where no token is unknown: almost no regularisation
RIDGE_CANDIDATES = (0.01, 0.1, 1.0, 3.0, 10.0, 30.0, 100.0)  # tried on validation tokens
VALIDATION_DIVISOR = 10  # one token in so many is for validation, to choose the ridge
MATRICES_RATE, OTHERS_RATE = 0.02, 0.01  # learning rates


def fit_encoder(
    shape: ByteEncoderShape, dataset: EmbeddingDataset, chosen: Tensor, *, steps: int, contrast: float, seed: int
) -> ByteEncoder:
    """A network trained on the `chosen` (N,) tokens and no others; the same one each time.

    The network is trained by gradient steps, and its last layer is then fitted by ridge regression. Some of the chosen
    tokens are for validation: the ridge is the one that predicts them best.
    """
    encoder = ByteEncoder(shape, dataset.rows.shape[1])
    initialise(encoder, seed)
    matrices, others = _split_parameters(encoder)
    optimizers = [
        (Muon(matrices, MATRICES_RATE, torch.float32), MATRICES_RATE),
        (torch.optim.AdamW(others, lr=OTHERS_RATE, betas=(0.9, 0.95), weight_decay=0.0), OTHERS_RATE),
    ]
    fit_mask = chosen & ~_validation_mask(chosen, seed)
    targets, weights = _standardised(dataset, fit_mask), dataset.weights
    batches = _batches(dataset, fit_mask, seed)
    for step in progress(range(steps), "train_soft_tokenizer", unit="step"):
        batch = next(batches)
        spelled = dataset.byte_ids[batch]
        predicted = encoder(spelled[:, : int((spelled != PAD_SYMBOL).sum(dim=1).max())])  # without common padding
        embedding_loss(predicted, targets[batch], weights[batch], contrast).backward()
        for optimizer, full_rate in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = full_rate * learning_rate_factor(step, steps)
            optimizer.step()
            optimizer.zero_grad()
    fit_last_layer(encoder, dataset, chosen, best_ridge(encoder, dataset, fit_mask, chosen & ~fit_mask))
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
    """Fit the last layer to the chosen rows by ridge regression; `ridge` is relative to the features' mean square."""
    encoder.embed_out.weight.copy_(_ridge_solver(encoder, dataset, chosen)(ridge).T)


@torch.no_grad()
def best_ridge(encoder: ByteEncoder, dataset: EmbeddingDataset, fit_mask: Tensor, validation_mask: Tensor) -> float:
    """The ridge that, fitted on `fit_mask` (N,), predicts the rows of `validation_mask` (N,) best."""
    solve, features = _ridge_solver(encoder, dataset, fit_mask), _features(encoder, dataset.byte_ids[validation_mask])

    def squared_error(ridge: float) -> float:
        distances = (features @ solve(ridge) - dataset.rows[validation_mask]).square().sum(dim=1)
        return float((dataset.weights[validation_mask] * distances).sum())

    return min(RIDGE_CANDIDATES, key=squared_error)


def _ridge_solver(encoder: ByteEncoder, dataset: EmbeddingDataset, chosen: Tensor) -> Callable[[float], Tensor]:
    """Gives the last layer's weights (F, C) for a ridge, by the normal equations of weighted least squares.

    The bias column is not penalised, so that an unknown token gets the mean row.
    """
    features = _features(encoder, dataset.byte_ids[chosen])
    weighted = (features * dataset.weights[chosen, None]).T
    moments, products = weighted @ features, weighted @ dataset.rows[chosen].double()

    def solve(ridge: float) -> Tensor:
        penalty = moments.diagonal()[:-1].mean() * ridge * torch.ones(len(moments), dtype=torch.float64)
        penalty[-1] = 0
        solution: Tensor = torch.linalg.solve(moments + penalty.diag(), products)
        return solution

    return solve


@torch.no_grad()
def predict(encoder: ByteEncoder, spelled: Tensor) -> Tensor:
    """(N, L) -> (N, C): the rows that the network predicts, computed in batches."""
    return torch.cat([encoder(part) for part in spelled.split(BATCH_SIZE)])


def _features(encoder: ByteEncoder, spelled: Tensor) -> Tensor:
    """(N, L) -> (N, F) float64: the input of the last layer."""
    return torch.cat([encoder.encode(part) for part in spelled.split(BATCH_SIZE)]).double()


def _validation_mask(chosen: Tensor, seed: int) -> Tensor:
    """(N,) bool: one in VALIDATION_DIVISOR of the chosen tokens, but at least one."""
    order = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(seed))
    numbers = order[chosen[order]]
    return torch.zeros_like(chosen).index_fill(0, numbers[: -(-len(numbers) // VALIDATION_DIVISOR)], True)


def _split_parameters(encoder: ByteEncoder) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
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


# The network that the stage trains, and the metrics of its rows.


class TrainedEncoder(NamedTuple):
    encoder: ByteEncoder  # its last layer is fitted to all tokens
    dataset: EmbeddingDataset
    predicted: Tensor  # (N, R), by the network before that, which never saw the held-out tokens
    metrics: dict[str, Any]  # of the rows that both predict


def train_network(
    vocabulary: Vocabulary, table: Tensor, counts: np.ndarray, parameters: SoftTokenizerParameters
) -> TrainedEncoder:
    """A network for a model's table (V, R), whose tokens occur `counts` (V,) times in its training data.

    Truncated tokens are logged.
    """
    longest, held_out, seed = parameters.longest, parameters.held_out, parameters.seed
    dataset = EmbeddingDataset.from_table(vocabulary, table, counts, longest=longest, held_out=held_out, seed=seed)
    if cut := dataset.num_truncated:
        remark = f"{cut} of {len(dataset.ids)} tokens are longer than {longest} bytes: only so many are read"
        log("train_soft_tokenizer", remark)
    shape = ByteEncoderShape(
        width=parameters.width, layers=parameters.layers, longest=longest, ngrams=0, features=parameters.features
    )
    kept, everything = ~dataset.held_out, torch.ones_like(dataset.held_out)
    encoder = fit_encoder(shape, dataset, kept, steps=parameters.steps, contrast=parameters.contrast, seed=seed)
    predicted = predict(encoder, dataset.byte_ids)
    fit_last_layer(encoder, dataset, everything, RIDGE_ALL)
    rows = {
        "kept": compute_metrics(predicted, dataset, kept, kept),
        "held_out": compute_metrics(predicted, dataset, kept, dataset.held_out),
        "all": compute_metrics(predict(encoder, dataset.byte_ids), dataset, everything, everything),
    }
    learnt = [rows[name]["variance_explained"]["plain"] for name in ("kept", "all")]
    collapsed = any(share is None or not share >= MIN_EXPLAINED_VARIANCE for share in learnt)
    return TrainedEncoder(encoder, dataset, predicted, {"longer_than_read": cut, "collapsed": collapsed, **rows})
