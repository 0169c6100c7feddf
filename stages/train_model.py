"""Train the chat model."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor

from chatmill.checkpoints.configuration import Chunking, ModelConfig
from chatmill.encoded.token_files import Meta, read_meta, read_split, text_bytes
from chatmill.model.byte_head import shape_for, spell
from chatmill.model.chat_model import ChatModel, initialise
from chatmill.pipeline.checksum import check_sha256
from chatmill.pipeline.manifest import NAME
from chatmill.pipeline.stage import NonNegativeInt, Output, PositiveInt, afterwards, stage
from chatmill.tokenizer.vocabulary.files import read_folder
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary
from chatmill.training.byte_encoder import ByteEmbedding, ByteEncoder, ByteEncoderShape, plug, tabulate
from chatmill.training.checkpoint import Checkpoint, fingerprint
from chatmill.training.distributed import (
    DeviceKind,
    Group,
    choose_device,
    choose_processes,
    is_launched,
    joined,
    launch,
    load_weights,
    shard,
)
from chatmill.training.estimate import available_memory, check_memory, memory_needed, memory_told
from chatmill.training.initial import initial_files, load_initial
from chatmill.training.model_folder import write_model
from chatmill.training.optimizer import Optimizer
from chatmill.training.packing import Feed, cut_to_fit
from chatmill.training.run import plan_steps, tell, train
from chatmill.training.samples import sample_answers
from chatmill.training.trainer import (
    Precision,
    Trainer,
    choose_compile,
    choose_precision,
    compile_repeatably,
    keep_freed_memory,
)

LEARNING_RATE = 0.012
ENCODER = ByteEncoderShape(layers=0)  # n-grams alone: a layer took a third longer a step, and learnt less in it
VALIDATION_TOKENS = 16384  # each time
SAMPLES = 3
NOT_FOLLOWED = (
    "processes",
    "shard",
    "initial",
)  # a run that began with others goes on; a sum tells initial models apart


@dataclass(frozen=True, slots=True)
class Choice:
    """What `auto` stands for on this machine."""

    device: DeviceKind
    precision: Precision
    compile: bool


def read_inputs(tokens: Path, tokenizer: Path) -> tuple[Meta, Vocabulary]:
    """What the tokens were made with, and the tokenizer, which must be the same."""
    meta, vocabulary = read_meta(tokens), read_folder(tokenizer)
    if meta.fingerprint != vocabulary.fingerprint:
        raise ValueError(f"{tokens} was encoded with another tokenizer than {tokenizer}: run the encode stage anew")
    return meta, vocabulary


def read_feeds(tokens: Path, meta: Meta, special: dict[str, int], context: int) -> tuple[Feed, Feed]:
    """The train and validation conversations, in rows no longer than the longest for training needs."""
    train, validation = (read_split(tokens, split) for split in ("train", "validation"))
    pieces = cut_to_fit(train, context, meta.template, special)
    if not len(pieces.starts):
        raise ValueError(f"{tokens}: none of {meta.conversations['train']} conversations has anything to train on")
    row_length = min(context, 64 * -(-int(pieces.room.max()) // 64))
    shorter = cut_to_fit(validation, row_length, meta.template, special)
    return Feed(train, pieces, row_length, special), Feed(validation, shorter, row_length, special)


def new_model(
    asked: SimpleNamespace, vocabulary: Vocabulary, needed: Callable[[ModelConfig], int], available: int
) -> ChatModel:
    """The model to train: the initial one, or one of the asked shape, whose weights follow from the seed.

    Raises ValueError where this `needed` more bytes than are available.
    """
    if asked.initial is not None:
        files = initial_files(asked.initial)
        check_sha256(files, asked.initial_sha256, "train_model.initial_sha256", files[0].parent)
        return load_initial(asked.initial, vocabulary, asked.context, asked.embedding)
    shape = partial(shape_of, asked, vocabulary)
    check_memory(lambda depth: needed(shape(depth)), asked.depth, available)
    model = ChatModel(shape(asked.depth))
    if asked.embedding == "bytes":
        plug(model, ByteEncoder(ENCODER, model.config.hidden_size), vocabulary)
    if asked.head == "bytes":
        model.byte_head.learn_spelling(spell(vocabulary))
    initialise(model, asked.seed)
    return model


def trained_model(model: ChatModel, weights: dict[str, Tensor], vocabulary: Vocabulary) -> ChatModel:
    """A model like this one, whose own weights may be spread over processes, with these."""
    trained = ChatModel(model.config)
    if isinstance(embedding := model.model.embed_tokens, ByteEmbedding):
        plug(trained, ByteEncoder(embedding.encoder.shape, model.config.hidden_size), vocabulary)
    trained.load_state_dict(weights)
    return trained


def shape_of(asked: SimpleNamespace, vocabulary: Vocabulary, depth: int) -> ModelConfig:
    """The asked shape, at a depth."""
    sizes = {"context": asked.context, "width": asked.width, "heads": asked.heads}
    plain = ModelConfig.from_depth(depth, vocab_size=len(vocabulary.tokens), **sizes)
    return replace(
        plain,
        tie_word_embeddings=asked.tie_embeddings,
        chunking=None if asked.chunking == "none" else Chunking(boundaries=asked.chunking, rate=asked.tokens_per_chunk),
        byte_head=shape_for(vocabulary) if asked.head == "bytes" else None,
    )


def make_trainer(model: ChatModel, asked: SimpleNamespace, choice: Choice, num_bytes: Tensor, group: Group) -> Trainer:
    """The model with its optimizer, on the device or, sharded, over those of all processes."""
    if choice.compile and choice.device == "cpu":
        compile_repeatably()
    load_weights(model, group.share(model.state_dict()))
    model.head_alignment = asked.head_alignment
    sharded = asked.shard and group.size > 1
    if sharded:
        shard(model, group, compiled=choice.compile)
    model.to(group.device)
    return Trainer(
        model,
        Optimizer(model, asked.learning_rate, getattr(torch, choice.precision)),
        num_bytes,
        steps=asked.steps,
        prompt_weight=asked.prompt_loss_weight,
        precision=choice.precision,
        compiled=choice.compile and not sharded,
        group=group,
    )


def choose(asked: SimpleNamespace, device: DeviceKind, model: ChatModel, group: Group) -> Choice:
    """How this machine computes; told where it is the one that chose."""
    precision = choose_precision(asked.precision, device)
    operations = 6 * sum(weight.numel() for weight in model.parameters()) * asked.steps * asked.batch_size
    compiled = choose_compile(asked.compile, precision, operations / group.size, asked.threads, device)
    if group.leads and "auto" in (asked.device, asked.precision, asked.compile):
        how = f"{device}, {precision}, {'' if compiled else 'not '}compiled"
        tell(f"chosen for this hardware: {how}; other hardware gives other weights than dvc.lock names")
    return Choice(device, precision, compiled)


def train_in_group(
    device: DeviceKind, tokens: Path, tokenizer: Path, model: Path, curve: Path, parameters: dict[str, Any]
) -> None:
    """What each process does: train its part; the first writes the model and its curve."""
    asked = SimpleNamespace(**parameters)
    torch.set_num_threads(asked.threads)
    keep_freed_memory()
    with memory_told(), joined(device) as group:
        meta, vocabulary = read_inputs(tokens, tokenizer)
        feed, validation = read_feeds(tokens, meta, vocabulary.special, asked.context)
        plan = plan_steps(asked, feed, meta.vocab_size, group)
        needed = partial(
            memory_needed,
            rows=plan.rows_a_batch,
            row_length=feed.row_length,
            precision=choose_precision(asked.precision, device),
            shards=group.size if asked.shard else 1,
        )
        untrained = new_model(asked, vocabulary, needed, available_memory(group.device) // group.beside)
        choice = group.share(choose(asked, device, untrained, group))
        trainer = make_trainer(untrained, asked, choice, torch.from_numpy(text_bytes(vocabulary)), group)
        held_out = islice(validation.epoch(0, 0), -(-VALIDATION_TOKENS // feed.row_length))
        batches = validation.batches(held_out, plan.rows_a_batch, group.rank, group.size)
        followed = {name: value for name, value in parameters.items() if name not in NOT_FOLLOWED}
        checkpoint = Checkpoint(fingerprint(followed, [tokens / NAME, tokenizer / NAME]), tell)
        lines = train(trainer, feed, batches, plan, checkpoint, vocabulary)
        weights = group.whole(trainer.model.state_dict())
        if not group.leads:
            return

        made = {
            "template": meta.template,
            "depth": trainer.model.config.num_hidden_layers,
            "steps": asked.steps,
            "prompt_loss_weight": asked.prompt_loss_weight,
            "embedding": asked.embedding,
            "device": device,
            "processes": group.size,
            "precision": choice.precision,
            "compile": choice.compile,
            "threads": asked.threads,
            "conversations": {"cut": int(feed.pieces.cut.sum()), "rejected": feed.pieces.rejected},
            "padding": round(feed.padding(asked.seed), 4),
        }
        trained = trained_model(trainer.model, weights, vocabulary)
        write_model(model, trained, tokenizer, vocabulary, made, tabulate(trained))
        curve.write_text(lines, encoding="utf-8")
        for question, answer in sample_answers(trained, validation.split, vocabulary, SAMPLES):
            tell(f"{question!r} is answered {answer!r}")
        afterwards(checkpoint.remove)


@stage
def main(
    tokens: Path,
    tokenizer: Path,
    model: Output,
    curve: Output,
    *,
    depth: PositiveInt,
    context: PositiveInt,
    steps: PositiveInt,
    batch_size: PositiveInt,
    prompt_loss_weight: Annotated[float, Field(ge=0, le=1)],
    seed: NonNegativeInt,
    threads: PositiveInt,
    precision: Literal["auto", "float32", "bfloat16"],
    compile: Literal["auto"] | bool,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    processes: Literal["auto"] | PositiveInt = 1,
    shard: bool = False,
    initial: Path | None = None,
    initial_sha256: str = "",
    embedding: Literal["table", "bytes"] = "table",
    tie_embeddings: bool = True,
    head_alignment: NonNegativeFloat = 0.0,
    head: Literal["table", "bytes"] = "table",
    chunking: Literal["none", "learned", "autoencoder", "fixed"] = "none",
    tokens_per_chunk: Annotated[float, Field(gt=1)] = 4.0,
    width: PositiveInt | None = None,
    heads: PositiveInt | None = None,
    learning_rate: PositiveFloat = LEARNING_RATE,
    checkpoint_every: PositiveInt = 100,
) -> None:
    """Write a model trained on the tokens, and its learning curve; a killed run goes on where it was."""
    files = {"tokens": tokens, "tokenizer": tokenizer, "model": model, "curve": curve}
    parameters = {name: value for name, value in locals().items() if name not in {"files", *files}}
    if batch_size < context:
        raise ValueError(f"train_model.batch_size = {batch_size} is less than train_model.context = {context}")
    if head_alignment and (tie_embeddings or head == "bytes"):
        raise ValueError(f"train_model.head_alignment = {head_alignment} takes tie_embeddings: false and head: table")
    if head == "bytes" and not tie_embeddings:
        raise ValueError("train_model.head = bytes spells and has no rows of its own: set tie_embeddings: true")
    kind = choose_device(device)
    count = 1 if is_launched() else choose_processes(processes, kind)
    if count == 1:
        train_in_group(kind, *files.values(), parameters)
    else:
        launch(train_in_group, count, (kind, *files.values(), parameters))
