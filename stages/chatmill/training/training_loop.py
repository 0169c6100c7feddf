"""The loop of a training run, from its checkpoint to its learning curve, and how its steps are divided into batches."""

import sys
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NoReturn

from chatmill.pipeline.progress import log
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary
from chatmill.training.checkpoint import SIGTERM_EXIT_CODE, Checkpoint, catch_sigterm
from chatmill.training.display import Display
from chatmill.training.distributed import Group
from chatmill.training.loss_watch import LossWatch, describe_conversations
from chatmill.training.packing import Batch, PackedDataset
from chatmill.training.train_parameters import TrainParameters
from chatmill.training.trainer import LossTotals, Trainer

STAGE = "train_model"
MAX_BATCH_LOGITS = 1 << 24  # the gradients of several batches are added up
CURVE_POINTS = 100
POINTS_PER_VALIDATION = 10
HEADER = "step\tloss\tbits_per_byte\tvalidation_bits_per_byte\tlearning_rate\n"


@dataclass(frozen=True, slots=True)
class Plan:
    """How rows are divided into steps and batches."""

    rows_per_step: int
    rows_per_batch: int  # computed together; it divides a process's rows of a step, so that all batches have one shape
    seed: int
    checkpoint_every: int  # steps


def plan_steps(parameters: TrainParameters, dataset: PackedDataset, vocab_size: int, group: Group) -> Plan:
    """Divide the tokens of a step, train_model.batch_size, into rows and batches."""
    total = int(dataset.spans.packed_lengths.sum())
    if group.is_main_process and total < parameters.context:
        log(STAGE, f"the conversations have {total} tokens together: lower train_model.context = {parameters.context}")
    rows_per_step = share_rows(parameters.batch_size, parameters.context, dataset.row_length, group.size)
    rows_per_batch = rows_at_once(rows_per_step // group.size, dataset.row_length, vocab_size)
    return Plan(rows_per_step, rows_per_batch, parameters.seed, parameters.checkpoint_every)


def rows_at_once(rows_per_step: int, row_length: int, vocab_size: int) -> int:
    """The rows that are computed together: the largest divisor of a step's rows within MAX_BATCH_LOGITS."""
    most = max(1, MAX_BATCH_LOGITS // (row_length * vocab_size))
    return max(rows for rows in range(1, rows_per_step + 1) if rows_per_step % rows == 0 and rows <= most)


def share_rows(batch_size: int, context: int, row_length: int, processes: int) -> int:
    """The rows of a step. Raises ValueError where the processes cannot share them evenly."""
    rows = batch_size // row_length
    if rows % processes:
        least = -(-context // (processes * row_length))
        nearest = max(least, round(rows / processes)) * processes * row_length
        raise ValueError(
            f"train_model.batch_size = {batch_size} makes {rows} rows of {row_length} tokens "
            f"(train_model.context = {context}), which {processes} processes cannot share evenly: "
            f"the nearest batch_size that works is {nearest}"
        )
    return rows


def train(
    trainer: Trainer,
    dataset: PackedDataset,
    validation: list[Batch],
    plan: Plan,
    checkpoint: Checkpoint,
    vocabulary: Vocabulary,
) -> str:
    """Train from the checkpoint, or from the start; return the content of train.tsv."""
    curve, sums, watch, group = HEADER, LossTotals(), LossWatch(), trainer.group
    if state := group.broadcast(checkpoint.load() if group.is_main_process else None):
        curve, sums = state["curve"], LossTotals(*state["sums"])
        trainer.load_state_dict(state["trainer"])
        watch.load_state_dict(state["watch"])
    rows = islice(dataset.endless_rows(plan.seed), trainer.completed_steps * plan.rows_per_step, None)
    every = max(1, trainer.steps // CURVE_POINTS)
    with catch_sigterm() as stop_requested, Display(trainer, plan.rows_per_step, dataset.row_length) as display:
        while trainer.completed_steps < trainer.steps:
            members = list(islice(rows, plan.rows_per_step))
            of_step = trainer.step(dataset.batches(members, plan.rows_per_batch, group.rank, group.size))
            done, last = trainer.completed_steps, trainer.completed_steps == trainer.steps
            watch.check(done, of_step.loss, partial(describe_conversations, dataset, members, vocabulary))
            sums, ending = sums.plus(of_step), group.total(stop_requested.is_set()) > 0
            if done % every == 0 or last:
                measured = done % (every * POINTS_PER_VALIDATION) == 0 or last
                held_out = trainer.evaluate(validation if measured else [])
                curve += curve_line(done, sums, held_out, trainer.optimizer.learning_rate)
                display.describe(sums)
                sums = LossTotals()
            if (done % plan.checkpoint_every == 0 or ending) and not last:
                state = {"curve": curve, "sums": tuple(sums), "watch": watch.state_dict()}
                state |= {"trainer": trainer.state_dict()}
                saved = group.is_main_process and checkpoint.save(state)
                if ending:
                    end_early(trainer, saved)
            display.update()
    return curve


def end_early(trainer: Trainer, saved: bool) -> NoReturn:
    """Log whether the state was saved, and exit."""
    if trainer.group.is_main_process:
        outcome = "the state is saved: run the same command to resume" if saved else "the state is not saved"
        log(STAGE, f"stopped by SIGTERM at step {trainer.completed_steps} of {trainer.steps}: {outcome}")
    sys.exit(SIGTERM_EXIT_CODE)


def curve_line(step: int, sums: LossTotals, held_out: LossTotals, learning_rate: float) -> str:
    """One line of train.tsv; values that were not measured are empty."""
    numbers = (sums.loss, sums.bits_per_byte, held_out.bits_per_byte, learning_rate)
    return "\t".join([str(step), *("" if number is None else f"{number:.6g}" for number in numbers)]) + "\n"
