"""Train the chat model."""

import json
import time
from collections.abc import Sequence
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
from chatmill.tokenizer.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.huggingface import write_huggingface
from chatmill.tokenizer.loading import load
from chatmill.tokens import Meta, read_meta, read_split, text_bytes
from chatmill.training import Sums, Trainer, choose_compile, choose_precision

LOGITS_AT_ONCE = 1 << 24  # in one batch; the gradients of several are added up
LEARNING_RATE = 0.02
CURVE_POINTS = 100
POINTS_A_VALIDATION = 10
VALIDATION_TOKENS = 16384  # each time
HEADER = "step\tloss\tbits_per_byte\tvalidation_bits_per_byte\tlearning_rate\n"


def read_inputs(tokens: Path, tokenizer: Path) -> tuple[Meta, ChatTokenizer]:
    """What the tokens were made with, and the tokenizer, which must be the same."""
    meta, chat_tokenizer = read_meta(tokens), load(tokenizer)
    if meta.fingerprint != chat_tokenizer.fingerprint:
        raise ValueError(f"{tokens} was encoded with another tokenizer than {tokenizer}: run the encode stage anew")
    return meta, chat_tokenizer


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
    """How many rows of a step are computed together: a divisor of them, so that all batches have one shape."""
    most = LOGITS_AT_ONCE // (row_length * vocab_size)
    return max(rows for rows in range(1, rows_a_step + 1) if rows_a_step % rows == 0 and rows <= max(1, most))


def curve_line(step: int, sums: Sums, validation: Sums, learning_rate: float) -> str:
    """One line of train.tsv; what was not measured is empty."""
    numbers = (sums.loss, sums.bits_per_byte, validation.bits_per_byte, learning_rate)
    return "\t".join([str(step), *("" if number is None else f"{number:.6g}" for number in numbers)]) + "\n"


def train(
    trainer: Trainer,
    feed: Feed,
    validation: Sequence[Batch],
    checkpoint: Checkpoint,
    *,
    rows_a_step: int,
    rows_a_batch: int,
    seed: int,
    checkpoint_every: int,
) -> str:
    """Train from the checkpoint, or from the start; return train.tsv."""
    curve, sums = HEADER, Sums()
    if state := checkpoint.load():
        curve, sums = state["curve"], Sums(*state["sums"])
        trainer.load_state_dict(state["trainer"])
    rows = islice(feed.rows(seed), trainer.done * rows_a_step, None)
    every, first, start = max(1, trainer.steps // CURVE_POINTS), trainer.done, time.monotonic()
    with bar(trainer.steps, "train", unit=" steps") as shown:
        shown.update(first)
        while (step := trainer.done + 1) <= trainer.steps:
            sums = sums.plus(trainer.step(feed.batches(islice(rows, rows_a_step), rows_a_batch)))
            if step % every == 0 or step == trainer.steps:
                measured = step % (every * POINTS_A_VALIDATION) == 0 or step == trainer.steps
                curve += curve_line(
                    step, sums, trainer.measure(validation if measured else []), trainer.optimizer.learning_rate
                )
                rate = (step - first) * rows_a_step * feed.row_length / (time.monotonic() - start)
                shown.set_postfix_str(
                    f"loss {sums.loss:.3f}, {sums.bits_per_byte or 0:.3f} bits/byte, {rate:,.0f} tokens/s"
                )
                sums = Sums()
            shown.update()
            if step % checkpoint_every == 0:
                checkpoint.save({"curve": curve, "sums": tuple(sums), "trainer": trainer.state_dict()})
    return curve


def write_model(
    folder: Path, model: ChatModel, tokenizer_folder: Path, tokenizer: ChatTokenizer, made: dict[str, Any]
) -> None:
    """The model as a Hugging Face folder; `made` says how it was trained."""
    folder.mkdir()
    write_huggingface(tokenizer_folder, folder, made["template"])
    ids = {f"{name}_token_id": tokenizer.special[token] for name, token in (("bos", BOS), ("eos", END), ("pad", PAD))}
    config = {**model.config.to_json(), **ids, "chatmill": {"fingerprint": tokenizer.fingerprint, **made}}
    for name, content in (("config.json", config), ("generation_config.json", ids)):
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    write_manifest(folder, kind="model", fingerprint=tokenizer.fingerprint)


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
    learning_rate: PositiveFloat | None = None,
    width: PositiveInt | None = None,
    heads: PositiveInt | None = None,
    checkpoint_every: PositiveInt = 100,
) -> None:
    """Write a model trained on the tokens, and its learning curve; a killed run goes on where it was."""
    given = {name: value for name, value in locals().items() if not isinstance(value, Path)}
    name = fingerprint(given, [tokens / NAME, tokenizer / NAME])
    torch.set_num_threads(threads)
    meta, chat_tokenizer = read_inputs(tokens, tokenizer)
    if batch_size < context:
        raise ValueError(f"train_model.batch_size = {batch_size} is less than train_model.context = {context}")
    feed, validation = read_feeds(tokens, meta, chat_tokenizer.special, context)
    network = ChatModel(
        ModelConfig.from_depth(depth, vocab_size=meta.vocab_size, context=context, width=width, heads=heads)
    )
    initialise(network, seed)

    rows_a_step = batch_size // feed.row_length
    rows_a_batch = rows_at_once(rows_a_step, feed.row_length, meta.vocab_size)
    arithmetic = choose_precision(precision)
    operations = 6 * sum(weight.numel() for weight in network.parameters()) * steps * batch_size
    compiled = choose_compile(compile, arithmetic, operations, threads)
    trainer = Trainer(
        network,
        Optimizer(network, learning_rate or LEARNING_RATE, getattr(torch, arithmetic)),
        torch.from_numpy(text_bytes(chat_tokenizer)),
        steps=steps,
        prompt_weight=prompt_loss_weight,
        precision=arithmetic,
        compiled=compiled,
    )
    checkpoint = Checkpoint(name)
    lines = train(
        trainer,
        feed,
        validation.batches(islice(validation.epoch(0, 0), VALIDATION_TOKENS // feed.row_length + 1), rows_a_batch),
        checkpoint,
        rows_a_step=rows_a_step,
        rows_a_batch=rows_a_batch,
        seed=seed,
        checkpoint_every=checkpoint_every,
    )
    made = {
        "template": meta.template,
        "depth": depth,
        "steps": steps,
        "prompt_loss_weight": prompt_loss_weight,
        "precision": arithmetic,
        "compile": compiled,
        "threads": threads,
        "conversations": {"cut": int(feed.pieces.cut.sum()), "rejected": feed.pieces.rejected},
        "padding": round(feed.padding(seed), 4),
    }
    write_model(model, network, tokenizer, chat_tokenizer, made)
    curve.write_text(lines, encoding="utf-8")
    checkpoint.remove()
