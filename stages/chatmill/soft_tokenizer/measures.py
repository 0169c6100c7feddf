"""The parameters of the stage train_soft_tokenizer, and what it measures."""

from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field, NonNegativeFloat
from torch import Tensor

from chatmill.encoded.file_encoding import encode_file
from chatmill.encoded.token_files import read_meta
from chatmill.evaluation.held_out_set import read_test_set
from chatmill.model.chat_model import load_chat_model
from chatmill.pipeline.manifest import check_manifest
from chatmill.pipeline.params_file import NonNegativeInt, PositiveInt
from chatmill.pipeline.progress import log
from chatmill.soft_tokenizer.byte_embedding import ByteEncoder, ByteEncoderShape
from chatmill.soft_tokenizer.embedding_evaluation import (
    EmbeddingEvaluator,
    embedding_table,
    measure_noisy,
    measure_plugged,
    transferred_embedding,
)
from chatmill.soft_tokenizer.encoder_training import (
    MIN_EXPLAINED_VARIANCE,
    RIDGE_ALL,
    EmbeddingDataset,
    compute_metrics,
    fit_encoder,
    fit_last_layer,
    predict,
)
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.tokenizer_loading import load as load_tokenizer
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary

# The parameters of a soft tokenizer: the section train_soft_tokenizer of params.yaml.


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


# What the stage train_soft_tokenizer measures: the network on held-out tokens, and the model with its rows.

COUNTED_AT_ONCE = 1 << 24  # ids, each of which takes eight bytes while they are counted


class TrainedEncoder(NamedTuple):
    """The dataset, the trained network, and its predictions."""

    dataset: EmbeddingDataset
    predicted: Tensor  # (N, R), by the network fitted without the held-out tokens
    encoder: ByteEncoder  # its last layer is fitted to all tokens
    predicted_with_all: Tensor  # (N, R), by `encoder`


def count_tokens(ids: NDArray[Any], vocab_size: int) -> NDArray[np.int64]:
    """(V,): how often each id occurs, counted in parts: the ids may be larger than memory."""
    counts = np.zeros(vocab_size, np.int64)
    for start in range(0, len(ids), COUNTED_AT_ONCE):
        counts += np.bincount(ids[start : start + COUNTED_AT_ONCE], minlength=vocab_size)
    return counts


def train_network(
    vocabulary: Vocabulary, table: Tensor, counts: np.ndarray, parameters: SoftTokenizerParameters
) -> TrainedEncoder:
    """A network for a model's table (V, R), whose tokens occur `counts` (V,) times in its training data.

    Truncated tokens are logged.
    """
    longest, held_out, seed = parameters.longest, parameters.held_out, parameters.seed
    steps, contrast = parameters.steps, parameters.contrast
    dataset = EmbeddingDataset.from_table(vocabulary, table, counts, longest=longest, held_out=held_out, seed=seed)
    if cut := dataset.num_truncated:
        remark = f"{cut} of {len(dataset.ids)} tokens are longer than {longest} bytes: only so many are read"
        log("train_soft_tokenizer", remark)
    shape = ByteEncoderShape(
        width=parameters.width, layers=parameters.layers, longest=longest, ngrams=0, features=parameters.features
    )
    fitted = fit_encoder(shape, dataset, ~dataset.held_out, steps=steps, contrast=contrast, seed=seed)
    encoder = deepcopy(fitted)
    fit_last_layer(encoder, dataset, torch.ones_like(dataset.held_out), RIDGE_ALL)
    return TrainedEncoder(dataset, predict(fitted, dataset.byte_ids), encoder, predict(encoder, dataset.byte_ids))


def measure_all(
    evaluator: EmbeddingEvaluator, trained: TrainedEncoder, plugged: Tensor, *, noise: bool
) -> dict[str, Any]:
    """The metrics without those of fine-tuning; `plugged` (V, R) are the rows of the encoder fitted to all tokens."""
    dataset, predicted, encoder, predicted_with_all = trained
    kept, everything = ~dataset.held_out, torch.ones_like(dataset.held_out)
    rows = {
        "kept": compute_metrics(predicted, dataset, kept, kept),
        "held_out": compute_metrics(predicted, dataset, kept, dataset.held_out),
        "all": compute_metrics(predicted_with_all, dataset, everything, everything),
    }
    learnt = [rows[name]["variance_explained"]["plain"] for name in ("kept", "all")]
    result = {
        "longer_than_read": dataset.num_truncated,
        "collapsed": any(share is None or not share >= MIN_EXPLAINED_VARIANCE for share in learnt),
        **rows,
        "parameters": {
            "table": embedding_table(evaluator.model).numel(),
            "encoder": sum(weight.numel() for weight in encoder.parameters()),
        },
        "bits_per_byte": measure_plugged(evaluator, dataset, predicted, plugged),
    }
    return result | ({"noisy": measure_noisy(evaluator, plugged)} if noise else {})


def measure_transfer(
    evaluator: EmbeddingEvaluator,
    other: ChatTokenizer,
    train: Path,
    encoder: ByteEncoder,
    counts: np.ndarray,
    steps: int,
    seed: int,
) -> dict[str, Any]:
    """Bits per byte with another tokenizer, before and after fine-tuning; `counts` (V,) are of the model's own."""
    known, table = evaluator.tokenizer.vocabulary, embedding_table(evaluator.model)
    corpus = evaluator.corpus(other)
    embedding = transferred_embedding(deepcopy(encoder), other.vocabulary, known, table, counts)
    result = {"plugged_in": evaluator.bits_per_byte(embedding.weight, corpus)}
    if steps:
        split = encode_file(train, other, evaluator.template)
        model = evaluator.fine_tuned(embedding, other, split, steps=steps, seed=seed)
        result["tuned"] = evaluator.bits_per_byte(embedding_table(model), corpus)
    return result


def load_external_tokenizer(file: Path) -> ChatTokenizer:
    """An external tokenizer, with any missing control tokens added. Raises ValueError with the file."""
    loaded = load_tokenizer(file)
    try:
        return ChatTokenizer(add_special_tokens(loaded.vocabulary, []), leading_space=loaded.leading_space)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def make_evaluator(
    model: Path, tokens: Path, vocabulary: Vocabulary, test: Path, parameters: SoftTokenizerParameters
) -> tuple[EmbeddingEvaluator, dict[str, Any]]:
    """The evaluator of a trained model, and its metadata. Raises ValueError where the files do not fit together."""
    if check_manifest(model) != vocabulary.fingerprint:
        raise ValueError(f"{model} was trained with another tokenizer: run the train_model stage anew")
    if read_meta(tokens).fingerprint != vocabulary.fingerprint:
        raise ValueError(f"{tokens} was encoded with another tokenizer: run the encode stage anew")
    network, content = load_chat_model(model, torch.device("cpu"))
    metadata: dict[str, Any] = content["chatmill"]
    scored = read_test_set(test, parameters.conversations).records
    weight = metadata.get("prompt_loss_weight", 1.0)
    evaluator = EmbeddingEvaluator(network, ChatTokenizer(vocabulary), metadata["template"], weight, scored)
    return evaluator, metadata
