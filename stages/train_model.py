"""Train the chat model."""

import json
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveFloat
from safetensors.torch import save_file

from chatmill.checkpoint import Checkpoint, fingerprint
from chatmill.conversation import BOS, END, PAD
from chatmill.manifest import NAME, write_manifest
from chatmill.model import ChatModel, ModelConfig, initialise
from chatmill.optimizer import Optimizer
from chatmill.packing import Batch, Feed, cut_to_fit
from chatmill.progress import bar
from chatmill.stage import NonNegativeInt, Output, PositiveInt, stage
from chatmill.tokenizer.files import read_folder
from chatmill.tokenizer.huggingface import write_huggingface
from chatmill.tokenizer.vocabulary import Vocabulary
from chatmill.tokens import Meta, read_meta, read_split, text_bytes
from chatmill.training import Sums, Trainer, choose_compile, choose_precision

LEARNING_RATE = 0.012
LOGITS_AT_ONCE = 1 << 24  # in one batch; the gradients of several are added up
CURVE_POINTS = 100
POINTS_A_VALIDATION = 10
VALIDATION_TOKENS = 16384  # each time
HEADER = "step\tloss\tbits_per_byte\tvalidation_bits_per_byte\tlearning_rate\n"


@dataclass(frozen=True, slots=True)
class Plan:
    """How rows become steps."""

    rows_a_step: int
    rows_a_batch: int  # computed together; a divisor, so that all batches have one shape
    seed: int
    checkpoint_every: int  # steps


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


def rows_at_once(rows_a_step: int, row_length: int, vocab_size: int) -> int:
    """The most rows of a step that are computed together."""
    most = max(1, LOGITS_AT_ONCE // (row_length * vocab_size))
    return max(rows for rows in range(1, rows_a_step + 1) if rows_a_step % rows == 0 and rows <= most)


def train(trainer: Trainer, feed: Feed, validation: list[Batch], plan: Plan, checkpoint: Checkpoint) -> str:
    """Train from the checkpoint, or from the start; return train.tsv."""
    curve, sums = HEADER, Sums()
    if state := checkpoint.load():
        curve, sums = state["curve"], Sums(*state["sums"])
        trainer.load_state_dict(state["trainer"])
    rows = islice(feed.rows(plan.seed), trainer.done * plan.rows_a_step, None)
    every = max(1, trainer.steps // CURVE_POINTS)
    with bar(trainer.steps, "train", unit=" steps") as shown:
        shown.update(trainer.done)
        start, first = time.monotonic(), trainer.done
        while trainer.done < trainer.steps:
            sums = sums.plus(trainer.step(feed.batches(islice(rows, plan.rows_a_step), plan.rows_a_batch)))
            done, last = trainer.done, trainer.done == trainer.steps
            if done % every == 0 or last:
                measured = done % (every * POINTS_A_VALIDATION) == 0 or last
                held_out = trainer.measure(validation if measured else [])
                curve += curve_line(done, sums, held_out, trainer.optimizer.learning_rate)
                tokens = (done - first) * plan.rows_a_step * feed.row_length
                shown.set_postfix_str(describe(sums, tokens / (time.monotonic() - start)))
                sums = Sums()
            if done % plan.checkpoint_every == 0 and not last:
                checkpoint.save({"curve": curve, "sums": tuple(sums), "trainer": trainer.state_dict()})
            shown.update()
    return curve


def curve_line(step: int, sums: Sums, held_out: Sums, learning_rate: float) -> str:
    """One line of train.tsv; what was not measured is empty."""
    numbers = (sums.loss, sums.bits_per_byte, held_out.bits_per_byte, learning_rate)
    return "\t".join([str(step), *("" if number is None else f"{number:.6g}" for number in numbers)]) + "\n"


def describe(sums: Sums, speed: float) -> str:
    """What stands behind the progress bar."""
    bits = "" if sums.bits_per_byte is None else f"{sums.bits_per_byte:.3f} bits/byte, "
    return f"loss {sums.loss:.3f}, {bits}{speed:,.0f} tokens/s"


def write_model(folder: Path, model: ChatModel, tokenizer: Path, vocabulary: Vocabulary, made: dict[str, Any]) -> None:
    """The model as a Hugging Face folder; `made` says how it was trained."""
    folder.mkdir()
    write_huggingface(tokenizer, folder, made["template"])
    ids = {f"{name}_token_id": vocabulary.special[token] for name, token in (("bos", BOS), ("eos", END), ("pad", PAD))}
    config = {**model.config.to_json(), **ids, "chatmill": {"fingerprint": vocabulary.fingerprint, **made}}
    for name, content in (("config.json", config), ("generation_config.json", ids)):
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    write_manifest(folder, kind="model", fingerprint=vocabulary.fingerprint)


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
    width: PositiveInt | None = None,
    heads: PositiveInt | None = None,
    learning_rate: PositiveFloat = LEARNING_RATE,
    checkpoint_every: PositiveInt = 100,
) -> None:
    """Write a model trained on the tokens, and its learning curve; a killed run goes on where it was."""
    parameters = {name: value for name, value in locals().items() if not isinstance(value, Path)}
    torch.set_num_threads(threads)
    if batch_size < context:
        raise ValueError(f"train_model.batch_size = {batch_size} is less than train_model.context = {context}")
    meta, vocabulary = read_inputs(tokens, tokenizer)
    feed, validation = read_feeds(tokens, meta, vocabulary.special, context)
    config = ModelConfig.from_depth(depth, vocab_size=meta.vocab_size, context=context, width=width, heads=heads)
    network = ChatModel(config)
    initialise(network, seed)

    number_format = choose_precision(precision)
    operations = 6 * sum(weight.numel() for weight in network.parameters()) * steps * batch_size
    compiled = choose_compile(compile, number_format, operations, threads)
    optimizer = Optimizer(network, learning_rate, getattr(torch, number_format))
    trainer = Trainer(
        network,
        optimizer,
        torch.from_numpy(text_bytes(vocabulary)),
        steps=steps,
        prompt_weight=prompt_loss_weight,
        precision=number_format,
        compiled=compiled,
    )
    rows_a_step = batch_size // feed.row_length
    rows_a_batch = rows_at_once(rows_a_step, feed.row_length, meta.vocab_size)
    held_out = islice(validation.epoch(0, 0), -(-VALIDATION_TOKENS // feed.row_length))
    checkpoint = Checkpoint(fingerprint(parameters, [tokens / NAME, tokenizer / NAME]))
    plan = Plan(rows_a_step, rows_a_batch, seed, checkpoint_every)
    lines = train(trainer, feed, validation.batches(held_out, rows_a_batch), plan, checkpoint)

    made = {
        "template": meta.template,
        "depth": depth,
        "steps": steps,
        "prompt_loss_weight": prompt_loss_weight,
        "precision": number_format,
        "compile": compiled,
        "threads": threads,
        "conversations": {"cut": int(feed.pieces.cut.sum()), "rejected": feed.pieces.rejected},
        "padding": round(feed.padding(seed), 4),
    }
    write_model(model, network, tokenizer, vocabulary, made)
    curve.write_text(lines, encoding="utf-8")
    checkpoint.remove()
