"""The steps of a training run: how its batches become rows, and its loop, from the checkpoint to the learning curve."""

import sys
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NoReturn

from chatmill.pipeline.progress import log
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary
from chatmill.training.checkpoint import TERMINATED, Checkpoint, asked_to_end
from chatmill.training.display import Display
from chatmill.training.distributed import Group
from chatmill.training.loss_watch import LossWatch, name_documents
from chatmill.training.packing import Batch, Feed
from chatmill.training.parameters import TrainParameters
from chatmill.training.trainer import Sums, Trainer

STAGE = "train_model"
LOGITS_AT_ONCE = 1 << 24  # in one batch; the gradients of several are added up
CURVE_POINTS = 100
POINTS_A_VALIDATION = 10
HEADER = "step\tloss\tbits_per_byte\tvalidation_bits_per_byte\tlearning_rate\n"


@dataclass(frozen=True, slots=True)
class Plan:
    """How rows become steps."""

    rows_a_step: int
    rows_a_batch: int  # that a process computes together; a divisor of its part, so that all batches have one shape
    seed: int
    checkpoint_every: int  # steps


def plan_steps(parameters: TrainParameters, feed: Feed, vocab_size: int, group: Group) -> Plan:
    """How the batches that are asked for become rows."""
    if group.leads and 2 * feed.row_length <= parameters.context:
        longest = f"the longest conversation takes {feed.pieces.room.max()} tokens"
        log(
            STAGE,
            f"{longest}: beyond {feed.row_length}, nothing is learnt of train_model.context = {parameters.context}",
        )
    rows_a_step = share_rows(parameters.batch_size, parameters.context, feed.row_length, group.size)
    rows_a_batch = rows_at_once(rows_a_step // group.size, feed.row_length, vocab_size)
    return Plan(rows_a_step, rows_a_batch, parameters.seed, parameters.checkpoint_every)


def rows_at_once(rows_a_step: int, row_length: int, vocab_size: int) -> int:
    """The most rows of a step that are computed together."""
    most = max(1, LOGITS_AT_ONCE // (row_length * vocab_size))
    return max(rows for rows in range(1, rows_a_step + 1) if rows_a_step % rows == 0 and rows <= most)


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
    trainer: Trainer, feed: Feed, validation: list[Batch], plan: Plan, checkpoint: Checkpoint, vocabulary: Vocabulary
) -> str:
    """Train from the checkpoint, or from the start; return train.tsv."""
    curve, sums, watch, group = HEADER, Sums(), LossWatch(), trainer.group
    if state := group.share(checkpoint.load() if group.leads else None):
        curve, sums = state["curve"], Sums(*state["sums"])
        trainer.load_state_dict(state["trainer"])
        watch.load_state_dict(state["watch"])
    rows = islice(feed.rows(plan.seed), trainer.done * plan.rows_a_step, None)
    every = max(1, trainer.steps // CURVE_POINTS)
    with asked_to_end() as asked, Display(trainer, plan.rows_a_step, feed.row_length) as display:
        while trainer.done < trainer.steps:
            members = list(islice(rows, plan.rows_a_step))
            of_step = trainer.step(feed.batches(members, plan.rows_a_batch, group.rank, group.size))
            done, last = trainer.done, trainer.done == trainer.steps
            watch.check(done, of_step.loss, partial(name_documents, feed, members, vocabulary))
            sums, ending = sums.plus(of_step), group.total(asked.is_set()) > 0
            if done % every == 0 or last:
                measured = done % (every * POINTS_A_VALIDATION) == 0 or last
                held_out = trainer.measure(validation if measured else [])
                curve += curve_line(done, sums, held_out, trainer.optimizer.learning_rate)
                display.describe(sums)
                sums = Sums()
            if (done % plan.checkpoint_every == 0 or ending) and not last:
                state = {"curve": curve, "sums": tuple(sums), "watch": watch.state_dict()}
                state |= {"trainer": trainer.state_dict()}
                saved = group.leads and checkpoint.save(state)
                if ending:
                    end_early(trainer, saved)
            display.update()
    return curve


def end_early(trainer: Trainer, saved: bool) -> NoReturn:
    """Say what is kept, and exit."""
    if trainer.group.leads:
        kept = "saved, and the same command goes on from here" if saved else "not saved"
        log(STAGE, f"asked to end at step {trainer.done} of {trainer.steps}: {kept}")
    sys.exit(TERMINATED)


def curve_line(step: int, sums: Sums, held_out: Sums, learning_rate: float) -> str:
    """One line of train.tsv; what was not measured is empty."""
    numbers = (sums.loss, sums.bits_per_byte, held_out.bits_per_byte, learning_rate)
    return "\t".join([str(step), *("" if number is None else f"{number:.6g}" for number in numbers)]) + "\n"
