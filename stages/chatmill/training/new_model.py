"""The model from which training starts: a new one, one of an earlier run, or a published one.

A new model already predicts a token from the one before it: its layers change nothing at first, so the logits after a
token are products of its normalised row with the head's rows. These are fitted to how often each token follows each
other one in the training set, which takes seconds.

Shapes: N conversations, P different bigrams, X contexts of a step, V vocabulary.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.gguf_import import read_shape, read_tensors
from chatmill.model.chat_model import (
    EMBEDDING,
    HEAD,
    INITIAL_ROTARY_POSITIONS,
    ChatModel,
    initialise,
    load_chat_model,
    model_from_weights,
)
from chatmill.pipeline.manifest import MANIFEST_NAME, check_manifest
from chatmill.pipeline.progress import duration, log
from chatmill.run_display import available_memory, check_memory, describe_run, needed_memory
from chatmill.soft_tokenizer.byte_embedding import ByteEmbedding, ByteEncoder, ByteEncoderShape, use_byte_embedding
from chatmill.tokenizer.formats.gguf_files import FIELD, read_gguf, vocabulary_of
from chatmill.tokenizer.formats.tokenizer_loading import read_vocabulary
from chatmill.tokenizer.vocabulary.tokenizer_folder import stand_ins
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary
from chatmill.training.distributed import DeviceKind, Group
from chatmill.training.hardware import HardwareSettings, autocast, choose_hardware
from chatmill.training.lora import add_adapters, merged
from chatmill.training.model_folder import ENCODER_FILE, read_byte_encoder
from chatmill.training.packing import PackedDataset, TrainingData
from chatmill.training.plan import Plan
from chatmill.training.train_parameters import Precision, TrainParameters
from chatmill.training.trainer import Trainer, make_trainer

# Where the training of a new model starts: its embedding and head already predict a token from the one before it.

STEPS, RATE = 100, 0.02
_MAX_TOKENS = 1 << 25  # that are counted, of conversations drawn at random
_MAX_LOGITS = 1 << 24  # of a step: for a larger vocabulary its contexts are drawn
_BLOCK_LOGITS = 1 << 22  # that are held at once, with their gradients


class Bigrams(NamedTuple):
    """How often tokens follow each other, sorted by the first one."""

    first: NDArray[np.int64]  # (P,)
    second: NDArray[np.int64]  # (P,)
    weights: NDArray[np.float64]  # (P,), whose sum is 1


def count_bigrams(dataset: PackedDataset, seed: int) -> Bigrams:
    """The bigrams within conversations, each as often as the conversation is read in an epoch."""
    spans, ids = dataset.spans, dataset.split.ids
    order = np.random.default_rng(seed).permutation(len(spans.starts))
    chosen = order[: spans.lengths[order].cumsum().searchsorted(_MAX_TOKENS) + 1]
    lengths, factors = spans.lengths[chosen] - 1, dataset.span_factors()[chosen]
    places = np.arange(lengths.sum()) + np.repeat(spans.starts[chosen] - lengths.cumsum() + lengths, lengths)
    weights, size = np.repeat(factors, lengths), np.iinfo(ids.dtype).max + 1
    keys, inverse = np.unique(ids[places].astype(np.int64) * size + ids[places + 1], return_inverse=True)
    counts = np.bincount(inverse, weights)
    first, second = np.divmod(keys[counts > 0], size)
    return Bigrams(first, second, counts[counts > 0] / counts.sum())


def batches(bigrams: Bigrams, vocab_size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield contexts (X,) and the weights (X, V) of the tokens after them, whose sum is 1; all contexts, or some drawn.

    A context is drawn as often as it occurs.
    """
    contexts, starts = np.unique(bigrams.first, return_index=True)
    number, ends = min(len(contexts), max(1, _MAX_LOGITS // vocab_size)), np.append(starts[1:], len(bigrams.first))
    shares, random = np.add.reduceat(bigrams.weights, starts), np.random.default_rng(seed)
    while True:
        is_drawn = number < len(contexts)
        chosen = random.choice(len(contexts), number, p=shares) if is_drawn else np.arange(number)
        lengths = (ends - starts)[chosen]
        rows = np.repeat(np.arange(number), lengths)
        places = np.arange(len(rows)) + np.repeat(starts[chosen] - lengths.cumsum() + lengths, lengths)
        weights = bigrams.weights[places] / (shares[chosen] * number)[rows] if is_drawn else bigrams.weights[places]
        targets = torch.zeros(number, vocab_size)
        targets[torch.from_numpy(rows), torch.from_numpy(bigrams.second[places])] = torch.from_numpy(weights).float()
        batch = torch.from_numpy(contexts[chosen]), targets
        yield batch
        while not is_drawn:
            yield batch


def start_from_bigrams(model: ChatModel, bigrams: Bigrams, seed: int, precision: Precision) -> float:
    """Fit the embedding and head of a new model to the bigrams; return the mean nats of the second token in the end."""
    table = model.model.embed_tokens.weight
    head = table if model.config.tie_word_embeddings else model.lm_head.weight
    optimizer = torch.optim.Adam([table] if head is table else [table, head], lr=RATE)
    block, nats, eps = max(1, _BLOCK_LOGITS // len(table)), 0.0, model.config.rms_norm_eps
    for step, (contexts, targets) in zip(range(STEPS), batches(bigrams, len(table), seed), strict=False):
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / STEPS)
        optimizer.zero_grad()
        nats = 0.0
        for rows, weights in zip(contexts.split(block), targets.split(block), strict=True):
            with autocast(table.device.type, precision):
                logits = F.linear(F.rms_norm(table[rows], table.shape[1:], eps=eps), head)
            loss = -(weights * logits.float().log_softmax(1)).sum()
            loss.backward()
            nats += loss.item()
        optimizer.step()
    optimizer.zero_grad()
    return nats


# A model from which training starts: of an earlier run of the pipeline, or a Llama, Mistral, Qwen2 or Qwen3.

MIN_KNOWN_FRACTION = 0.5  # of the text tokens that the model must have
NOISE = 0.1  # of the rows' standard deviation: it separates the rows of tokens that the model lacks

EmbeddingRow = int | None  # index into the model's embedding; None for a token that it lacks


def load_initial(
    path: Path, vocabulary: Vocabulary, context: int, embedding: Literal["table", "bytes"] = "table"
) -> ChatModel:
    """The model of a folder or GGUF file, in float32, with a row for each token of the vocabulary.

    It keeps its own context. Its embeddings are computed from bytes if `embedding` says so. Raises ValueError where it
    is missing or damaged, it is no variant of ours or has a shorter context, its tokenizer has little in common with
    the vocabulary, or it has no byte encoder to compute embeddings.
    """
    model, content, own_vocabulary = _read_initial(path)
    config = model.config
    if context > config.max_position_embeddings:
        most = config.max_position_embeddings
        raise ValueError(f"{path}: train_model.context: expected at most {most}, the model's, got {context}")
    rows = matching_rows(vocabulary, own_vocabulary, content, config.vocab_size)
    encoder = _encoder(path, config.hidden_size) if embedding == "bytes" else None
    if encoder is None:  # a byte encoder has rows for all tokens
        _check_share(vocabulary, rows, path)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}  # the file's are left as they are
    for name in weights.keys() & {f"model.{EMBEDDING}", HEAD}:
        weights[name] = remap_embedding(weights[name], rows)
    with torch.device("meta"):
        grown = ChatModel(replace(config, vocab_size=len(rows)))
    grown.load_state_dict(weights, assign=True)
    grown.build_rotary_tables(INITIAL_ROTARY_POSITIONS)
    if encoder is not None:
        use_byte_embedding(grown, encoder, vocabulary)
    return grown


def _read_initial(path: Path) -> tuple[ChatModel, dict[str, Any], Vocabulary]:
    """The model, the ids of control tokens by their names in config.json, and the vocabulary."""
    if not path.is_dir() and not (path.is_file() and path.suffix == ".gguf"):
        remedy = "in place of data/model, which DVC deletes, name a copy"
        raise ValueError(f"{path}: no such folder or GGUF file of a model: {remedy}")
    check_manifest(path if path.is_dir() else path.parent)
    if path.is_dir():
        return *load_chat_model(path, torch.device("cpu")), read_vocabulary(path)
    content = read_gguf(path)
    try:
        config, vocabulary = read_shape(content), vocabulary_of(content.fields)
        with torch.device("meta"):
            names = list(ChatModel(config).state_dict())
        weights = read_tensors(content, config, names)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    ids = {f"{kind}_token_id": content.fields.get(f"{FIELD}{kind}_token_id") for kind in ("bos", "eos")}
    return model_from_weights(config, weights, torch.device("cpu"), path), ids, vocabulary


def initial_files(path: Path) -> list[Path]:
    """The files that identify an initial model: its manifest, or all that there are."""
    manifest = path / MANIFEST_NAME
    if not path.is_dir() or manifest.is_file():
        return [manifest if path.is_dir() else path]
    return sorted(file for file in path.rglob("*") if file.is_file())


def matching_rows(
    vocabulary: Vocabulary, model_vocabulary: Vocabulary, content: dict[str, Any], num_rows: int
) -> list[EmbeddingRow]:
    """The row of each token in a model of `num_rows` rows with its own vocabulary; `content` is its config.json."""
    entries = list(zip(model_vocabulary.tokens, model_vocabulary.kinds, strict=True))[:num_rows]
    places: dict[tuple[bytes, Kind], int] = {}
    for i, entry in enumerate(entries):
        places.setdefault(entry, i)
    special = {token.decode(errors="replace"): i for (token, kind), i in places.items() if kind is Kind.CONTROL}
    fallbacks = {(name.encode(), Kind.CONTROL): row for name, row in stand_ins(content, special, num_rows).items()}
    return [places.get(entry, fallbacks.get(entry)) for entry in zip(vocabulary.tokens, vocabulary.kinds, strict=True)]


def remap_embedding(weight: Tensor, rows: Sequence[EmbeddingRow]) -> Tensor:
    """(V, C) -> (len(rows), C): the given rows, and for None their mean and a little noise."""
    places = [i for i, row in enumerate(rows) if row is not None]
    named = weight[[row for row in rows if row is not None]]
    noise = torch.randn(len(rows), weight.shape[1], generator=torch.Generator().manual_seed(0))
    result = named.mean(dim=0) + NOISE * named.std(dim=0) * noise
    result[places] = named
    return result


def _encoder(path: Path, width: int) -> ByteEncoder:
    encoder = read_byte_encoder(path)
    if encoder is None:
        remedy = "name a copy of data/soft_tokenizer, or of a model that was trained with it"
        raise ValueError(f"{path}: no {ENCODER_FILE}, which train_model.embedding: bytes starts from: {remedy}")
    first_half = ByteEncoder(encoder.shape, width)  # an encoder's second half, if any, computes the head's rows
    halves = {"embed_out.weight": slice(width), "embed_ngrams.weight": (slice(None), slice(width))}
    first_half.load_state_dict({name: weight[halves.get(name, ...)] for name, weight in encoder.state_dict().items()})
    return first_half


def _check_share(vocabulary: Vocabulary, rows: Sequence[EmbeddingRow], path: Path) -> None:
    known = sum(rows[i] is not None for i in vocabulary.text_ids)
    if known < MIN_KNOWN_FRACTION * vocabulary.num_text:
        raise ValueError(
            f"{path}: its tokenizer has {known:,} of the {vocabulary.num_text:,} text tokens to be trained: "
            "use its own tokenizer, by train_tokenizer.type: pretrained"
        )


# The model to train, and one with the weights that training gave it.

ENCODER_SHAPE = ByteEncoderShape(layers=0)  # n-grams only: with a layer, steps took a third longer, for less


def new_trainer(
    parameters: TrainParameters, data: TrainingData, plan: Plan, device: DeviceKind, group: Group
) -> tuple[Trainer, HardwareSettings]:
    """The trainer of a new model, or of the initial one, and the settings of this hardware.

    Raises ValueError where a new model needs more memory than there is, before it is allocated.
    """
    needed = partial(needed_memory, parameters=parameters, plan=plan, device=device, group=group)
    if parameters.initial is None:
        shape = partial(shape_of, parameters, data.vocabulary)
        check_memory(lambda depth: needed(shape(depth)), parameters.depth, available_memory(group))
    model = new_model(parameters, data.vocabulary)
    hardware: HardwareSettings = group.broadcast(choose_hardware(parameters, device, model, plan.tokens, group))
    if group.is_main_process:
        has_table = isinstance(model.model.embed_tokens, torch.nn.Embedding)
        if parameters.start == "bigrams" and parameters.initial is None and has_table:
            started, bigrams = time.monotonic(), count_bigrams(plan.phases[0].dataset, parameters.seed)
            nats = start_from_bigrams(model, bigrams, parameters.seed, hardware.precision)
            took = duration(time.monotonic() - started)
            log("train_model", f"starts from counted bigrams: {nats:.2f} nats a token, {took}")
        for line in describe_run(plan, model, needed(model.config), device):
            log("train_model", line)
    num_bytes = torch.tensor(data.vocabulary.byte_lengths)
    return make_trainer(model, parameters, plan.steps, hardware, num_bytes, group), hardware


def new_model(parameters: TrainParameters, vocabulary: Vocabulary) -> ChatModel:
    """The model to train: the initial one, or one of the requested shape, initialised from the seed."""
    if parameters.initial is not None:
        model = load_initial(parameters.initial, vocabulary, parameters.context, parameters.embedding)
        if parameters.lora_rank is not None:
            add_adapters(model, parameters.lora_rank, parameters.seed)
        return model
    model = ChatModel(shape_of(parameters, vocabulary, parameters.depth))
    if parameters.embedding == "bytes":
        use_byte_embedding(model, ByteEncoder(ENCODER_SHAPE, model.config.hidden_size), vocabulary)
    initialise(model, parameters.seed)
    return model


def trained_model(model: ChatModel, weights: dict[str, Tensor], vocabulary: Vocabulary) -> ChatModel:
    """A copy of a model, whose own weights may be sharded, with these full ones."""
    trained = ChatModel(model.config)
    if isinstance(embedding := model.model.embed_tokens, ByteEmbedding):
        use_byte_embedding(trained, ByteEncoder(embedding.encoder.shape, model.config.hidden_size), vocabulary)
    trained.load_state_dict(merged(weights))
    return trained


def shape_of(parameters: TrainParameters, vocabulary: Vocabulary, depth: int) -> ModelConfig:
    plain = ModelConfig.from_depth(
        depth,
        vocab_size=len(vocabulary.tokens),
        context=parameters.context,
        width=parameters.width,
        heads=parameters.heads,
    )
    return replace(plain, tie_word_embeddings=parameters.tie_embeddings)
