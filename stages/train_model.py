"""Train the chat model."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chatmill.checkpoints.configuration import Chunking, ModelConfig
from chatmill.encoded.token_files import Meta, read_inputs, read_sources, read_split, token_byte_lengths
from chatmill.model.chat_model import ChatModel, initialise
from chatmill.pipeline.manifest import MANIFEST_NAME
from chatmill.pipeline.params_file import check_external
from chatmill.pipeline.progress import duration, log
from chatmill.pipeline.signatures import GrowingOutput, Output
from chatmill.pipeline.stage import on_success, stage
from chatmill.soft_tokenizer.byte_embedding import (
    ByteEmbedding,
    ByteEncoder,
    ByteEncoderShape,
    use_byte_embedding,
    use_embedding_table,
)
from chatmill.soft_tokenizer.byte_head import byte_head_shape, spell_vocabulary
from chatmill.teacher.predictions import Predictions, read_predictions
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary
from chatmill.training.checkpoint import PARTS, Checkpoint, changed_parts, run_fingerprint
from chatmill.training.display import describe_run
from chatmill.training.distributed import (
    DeviceKind,
    Group,
    choose_device_kind,
    choose_processes,
    is_launched,
    join_process_group,
    launch,
    load_full_state_dict,
    shard,
)
from chatmill.training.estimate import available_memory, check_memory, memory_needed, report_out_of_memory
from chatmill.training.hardware import NUMBER_FORMATS, choose_compile, choose_precision, set_up_compiler
from chatmill.training.model_folder import sample_answers, write_model
from chatmill.training.new_model import (
    can_start_from_bigrams,
    count_bigrams,
    initial_files,
    load_initial,
    start_from_bigrams,
)
from chatmill.training.optimizer import MuonAdamW
from chatmill.training.packing import PackedDataset, truncate_conversations
from chatmill.training.train_parameters import Precision, TrainParameters
from chatmill.training.trainer import Trainer, keep_freed_memory
from chatmill.training.training_loop import STAGE, Plan, plan_steps, train
from chatmill.training.validation import CurveFile, KeptWeights, pooled_validation, weighted_batches

ENCODER_SHAPE = ByteEncoderShape(layers=0)  # n-grams only: with a layer, steps took a third longer, for less
CHAINED = 0.5  # of the conversations; without chains, answers after 300 tokens of other talk were 40 % right, not 98 %
SAMPLES = 3
# these may change before a run resumes; an initial model is identified by its files, not by their path
NOT_FOLLOWED = {"processes", "shard", "initial"}


@dataclass(frozen=True, slots=True)
class HardwareSettings:
    """The settings that `auto` stands for on this machine."""

    device: DeviceKind
    precision: Precision
    compile: bool


def read_teacher(teacher: Path, meta: Meta, parameters: TrainParameters) -> tuple[Predictions | None, dict[str, Any]]:
    """The teacher's predictions, if there are any, and what the model's metadata tell of it.

    Raises ValueError where the model has no probabilities of tokens that could be compared with them.
    """
    predictions, formats = read_predictions(teacher, meta)
    if predictions is None or not parameters.teacher_weight:
        return None, {}
    if parameters.head == "bytes":
        raise ValueError(
            "train_model.head = bytes predicts bytes, and the teacher tokens: "
            "set train_model.head: table, or train_model.teacher_weight: 0"
        )
    return predictions, {"teacher": formats, "teacher_weight": parameters.teacher_weight}


def read_datasets(
    tokens: Path, meta: Meta, special: dict[str, int], context: int, teacher: Predictions | None
) -> tuple[PackedDataset, PackedDataset]:
    """The train and validation conversations, in rows of the context's length; the former with a teacher, if any."""
    train, validation = (read_split(tokens, split) for split in ("train", "validation"))
    spans = truncate_conversations(train, context, meta.template, special)
    if not len(spans.starts):
        raise ValueError(f"{tokens}: none of {meta.conversations['train']} conversations has anything to train on")
    shorter = truncate_conversations(validation, context, meta.template, special)
    sources = read_sources(tokens, "train", meta)
    dataset = PackedDataset(train, spans, context, special, CHAINED, sources, teacher=teacher)
    return dataset, PackedDataset(
        validation, shorter, context, special, sources=read_sources(tokens, "validation", meta)
    )


def new_model(
    parameters: TrainParameters, vocabulary: Vocabulary, needed: Callable[[ModelConfig], int], available: int
) -> ChatModel:
    """The model to train: the initial one, or one of the requested shape, initialised from the seed.

    Raises ValueError where that needs more bytes than are available.
    """
    if parameters.initial is not None:
        return load_initial(parameters.initial, vocabulary, parameters.context, parameters.embedding)
    shape = partial(shape_of, parameters, vocabulary)
    check_memory(lambda depth: needed(shape(depth)), parameters.depth, available)
    model = ChatModel(shape(parameters.depth))
    if parameters.embedding == "bytes":
        use_byte_embedding(model, ByteEncoder(ENCODER_SHAPE, model.config.hidden_size), vocabulary)
    if parameters.head == "bytes":
        model.byte_head.set_spelling(spell_vocabulary(vocabulary))
    initialise(model, parameters.seed)
    return model


def trained_model(model: ChatModel, weights: dict[str, Tensor], vocabulary: Vocabulary) -> ChatModel:
    """A copy of a model, whose own weights may be sharded, with these full ones."""
    trained = ChatModel(model.config)
    if isinstance(embedding := model.model.embed_tokens, ByteEmbedding):
        use_byte_embedding(trained, ByteEncoder(embedding.encoder.shape, model.config.hidden_size), vocabulary)
    trained.load_state_dict(weights)
    return trained


def shape_of(parameters: TrainParameters, vocabulary: Vocabulary, depth: int) -> ModelConfig:
    """The shape that the parameters define, at a depth."""
    plain = ModelConfig.from_depth(
        depth,
        vocab_size=len(vocabulary.tokens),
        context=parameters.context,
        width=parameters.width,
        heads=parameters.heads,
    )
    chunking = None
    if parameters.chunking != "none":
        chunking = Chunking(boundaries=parameters.chunking, rate=parameters.tokens_per_chunk)
    return replace(
        plain,
        tie_word_embeddings=parameters.tie_embeddings,
        chunking=chunking,
        byte_head=byte_head_shape(vocabulary) if parameters.head == "bytes" else None,
    )


def make_trainer(
    model: ChatModel,
    parameters: TrainParameters,
    steps: int,
    hardware: HardwareSettings,
    num_bytes: Tensor,
    group: Group,
) -> Trainer:
    """The trainer of a model, on the device or, sharded, over those of all processes."""
    if hardware.compile and hardware.device == "cpu":
        set_up_compiler()
    load_full_state_dict(model, model.state_dict(), group)
    model.head_alignment = parameters.head_alignment
    sharded = parameters.shard and group.size > 1
    if sharded:
        shard(model, group, compiled=hardware.compile)
    model.to(group.device)
    return Trainer(
        model,
        MuonAdamW(model, parameters.learning_rate, NUMBER_FORMATS[hardware.precision].dtype),
        num_bytes,
        steps=steps,
        prompt_weight=parameters.prompt_loss_weight,
        precision=hardware.precision,
        compiled=hardware.compile and not sharded,
        group=group,
        teacher_weight=parameters.teacher_weight,
    )


def choose_hardware(
    parameters: TrainParameters, device: DeviceKind, model: ChatModel, tokens: int, group: Group
) -> HardwareSettings:
    """The device, precision and compilation to train on so many tokens with; logged where a parameter is `auto`."""
    precision = choose_precision(parameters.precision, device)
    operations = 6 * sum(weight.numel() for weight in model.parameters()) * tokens
    compiled = choose_compile(parameters.compile, precision, operations / group.size, parameters.threads, device)
    if group.is_main_process and "auto" in (parameters.device, parameters.precision, parameters.compile):
        settings = f"{device}, {precision}, {'' if compiled else 'not '}compiled"
        log(STAGE, f"chosen for this hardware: {settings}; on other hardware, weights differ from those of dvc.lock")
    return HardwareSettings(device, precision, compiled)


def keep_weights(parameters: TrainParameters, validation: PackedDataset, plan: Plan, group: Group) -> KeptWeights:
    """The weights to keep: the best are those for the sources as the last phase weights them.

    Raises ValueError where the validation set has none of these.
    """
    if parameters.keep == "best" and not len(validation.spans.starts):
        raise ValueError("train_model.keep = best: the validation set is empty: set keep: last")
    last = plan.phases[-1]
    if parameters.keep == "last" or not last.dataset.weights:
        return KeptWeights(parameters.keep)
    return KeptWeights("best", weighted_batches(validation, last.dataset.source_shares(), last.rows_per_batch, group))


def start(model: ChatModel, dataset: PackedDataset, parameters: TrainParameters, precision: Precision) -> None:
    """Let a new model start from what the parameters say."""
    if parameters.start == "bigrams" and parameters.initial is None and can_start_from_bigrams(model):
        started = time.monotonic()
        nats = start_from_bigrams(model, count_bigrams(dataset, parameters.seed), parameters.seed, precision)
        took = duration(time.monotonic() - started)
        log(STAGE, f"starts from counted bigrams: {nats:.2f} nats a token, {took}")


def check_equal(fingerprint: str, group: Group) -> None:
    """Raise ValueError in all processes if one of them has other parameters, data or code than the main process."""
    changed = changed_parts(fingerprint, group.broadcast(fingerprint))
    if different := [part for part in PARTS[:-1] if group.total(part in changed)]:
        raise ValueError(
            f"the processes have different {' and '.join(different)}: give each machine the same clone and data"
        )


def run_worker(
    device: DeviceKind,
    tokens: Path,
    tokenizer: Path,
    teacher: Path,
    model: Path,
    curve: Path,
    parameters: TrainParameters,
) -> None:
    """Train the part of one process; the main process writes the model and its learning curve."""
    torch.set_num_threads(parameters.threads)
    keep_freed_memory()
    with report_out_of_memory(), join_process_group(device) as group:
        meta, vocabulary = read_inputs(tokens, tokenizer)
        predictions, taught_by = read_teacher(teacher, meta, parameters)
        dataset, validation = read_datasets(tokens, meta, vocabulary.special, parameters.context, predictions)
        plan = plan_steps(parameters, dataset, meta.vocab_size, group)
        needed = partial(
            memory_needed,
            rows=plan.phases[-1].rows_per_batch,
            row_length=dataset.row_length,
            precision=choose_precision(parameters.precision, device),
            shards=group.size if parameters.shard else 1,
            copies=int(parameters.keep == "best" and device == "cpu"),
        )
        untrained = new_model(
            parameters, vocabulary, needed, available_memory(group.device) // group.processes_per_device
        )
        length = plan.length
        hardware = group.broadcast(choose_hardware(parameters, device, untrained, length.tokens, group))
        if group.is_main_process:
            start(untrained, plan.phases[0].dataset, parameters, hardware.precision)
        num_bytes = torch.from_numpy(token_byte_lengths(vocabulary))
        trainer = make_trainer(untrained, parameters, length.steps, hardware, num_bytes, group)
        measured_on = pooled_validation(validation, plan.phases[-1].rows_per_batch, group)
        kept = keep_weights(parameters, validation, plan, group)
        followed = parameters.model_dump(mode="json", exclude=NOT_FOLLOWED) | {"precision": hardware.precision}
        inputs = [
            tokens / MANIFEST_NAME,
            tokenizer / MANIFEST_NAME,
            teacher / MANIFEST_NAME,
            *(initial_files(parameters.initial) if parameters.initial else []),
        ]
        fingerprint = run_fingerprint(followed, inputs)
        check_equal(fingerprint, group)
        checkpoint = Checkpoint(fingerprint, partial(log, STAGE))
        if group.is_main_process:
            for line in describe_run(length, trainer.model, needed(trainer.model.config), device):
                log(STAGE, line)
        curve_file = CurveFile(curve if group.is_main_process else None, measured_on.sources.values())
        train(trainer, measured_on, plan, checkpoint, vocabulary, curve_file, kept)
        weights = kept.final(trainer)
        if not group.is_main_process:
            return

        metadata = {
            "template": meta.template,
            "tools": meta.tools,
            "depth": trainer.model.config.num_hidden_layers,
            "steps": length.steps,
            "epochs": round(length.epochs, 4),
            **parameters.model_dump(include={"source_weights", "phases"}, exclude_defaults=True),
            "kept_step": kept.step,
            "prompt_loss_weight": parameters.prompt_loss_weight,
            **taught_by,
            "embedding": parameters.embedding,
            "device": device,
            "processes": group.size,
            "precision": hardware.precision,
            "compile": hardware.compile,
            "threads": parameters.threads,
            "conversations": {
                "cut": int((dataset.spans.truncated & ~dataset.spans.documents).sum()),
                "rejected": dataset.spans.rejected,
            },
            "padding": round(plan.padding, 4),
        }
        trained = trained_model(trainer.model, weights, vocabulary)
        write_model(model, trained, tokenizer, vocabulary, metadata, use_embedding_table(trained))
        curve_file.complete()
        if parameters.keep == "best":
            log(STAGE, kept.describe())
        for question, answer in sample_answers(trained, validation.split, vocabulary, SAMPLES):
            log(STAGE, f"{question!r} is answered {answer!r}")
        on_success(checkpoint.remove)


@stage
def main(
    tokens: Path,
    tokenizer: Path,
    teacher: Path,
    external: Path,
    model: Output,
    curve: GrowingOutput,
    *,
    parameters: TrainParameters,
) -> None:
    """Write a model trained on the tokens, and its learning curve; a killed run resumes from its last checkpoint.

    `teacher` is what score_teacher wrote, and `external` the folder in which `parameters.initial` lies.
    """
    if parameters.initial is not None:
        check_external(parameters.initial, external, "train_model.initial")
    device = choose_device_kind(parameters.device)
    count = 1 if is_launched() else choose_processes(parameters.processes, device)
    arguments = (device, tokens, tokenizer, teacher, model, curve, parameters)
    if count == 1:
        run_worker(*arguments)
    else:
        launch(run_worker, count, arguments)
