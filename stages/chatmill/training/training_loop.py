"""The loop of a training run, from its checkpoint to its learning curve, and how its steps are divided into batches.

A run begins with short rows, in which to repeat what was said is learnt sooner, and a step takes less time. Each phase
of train_model.phases, with weights of the sources of its own, may have steps of both kinds.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import NoReturn

import numpy as np

from chatmill.pipeline.progress import log
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary
from chatmill.training.chains import Row
from chatmill.training.checkpoint import SIGTERM_EXIT_CODE, Checkpoint, catch_sigterm
from chatmill.training.display import Display
from chatmill.training.distributed import Group
from chatmill.training.loss_watch import LossWatch, describe_conversations
from chatmill.training.packing import Batch, PackedDataset
from chatmill.training.source_weights import describe_factors
from chatmill.training.train_parameters import TrainParameters
from chatmill.training.trainer import LossTotals, Trainer

STAGE = "train_model"
MAX_BATCH_LOGITS = 1 << 24  # the gradients of several batches are added up
CURVE_POINTS = 100
POINTS_PER_VALIDATION = 10
SHORT_ROW = 256  # tokens
SHORT_STEPS = 0.7  # share of the steps
HEADER = "step\tloss\tbits_per_byte\tvalidation_bits_per_byte\tlearning_rate\n"


@dataclass(frozen=True, slots=True)
class Phase:
    """Steps whose rows are of one dataset, and how these rows are divided into steps and batches."""

    dataset: PackedDataset
    steps: int
    rows_per_step: int
    rows_per_batch: int  # computed together; it divides a process's rows of a step, so that all batches have one shape


@dataclass(frozen=True, slots=True)
class Plan:
    """The phases of a run, the last of which has rows of the context's length."""

    phases: tuple[Phase, ...]
    seed: int
    checkpoint_every: int  # steps

    def steps_after(self, completed: int) -> Iterator[tuple[Phase, list[Row]]]:
        """The phase and the rows of each step that follows the completed ones."""
        streams: dict[int, Iterator[Row]] = {}  # the rows of each dataset, which later phases of the same continue
        for phase in self.phases:
            skipped = min(completed, phase.steps)
            completed -= skipped
            rows = streams.setdefault(id(phase.dataset), phase.dataset.endless_rows(self.seed))
            for _ in islice(rows, skipped * phase.rows_per_step):
                pass
            for _ in range(skipped, phase.steps):
                yield phase, list(islice(rows, phase.rows_per_step))


def plan_steps(parameters: TrainParameters, dataset: PackedDataset, vocab_size: int, group: Group) -> Plan:
    """Divide the steps into phases, and the tokens of a step, train_model.batch_size, into rows and batches."""
    total = int(dataset.spans.packed_lengths.sum())
    if group.is_main_process and total < parameters.context:
        log(STAGE, f"the conversations have {total} tokens together: lower train_model.context = {parameters.context}")

    def phase(dataset: PackedDataset, steps: int) -> Phase:
        rows_per_step = share_rows(parameters.batch_size, parameters.context, dataset.row_length, group.size)
        return Phase(
            dataset, steps, rows_per_step, rows_at_once(rows_per_step // group.size, dataset.row_length, vocab_size)
        )

    phases: list[Phase] = []
    weighted, may_be_short = list(weighted_datasets(parameters, dataset)), round(SHORT_STEPS * parameters.steps)
    if group.is_main_process and any(full.weights for full, _, _ in weighted):
        log_weights([(full, steps) for full, _, steps in weighted])
    for full, short, steps in weighted:
        num_short = min(may_be_short, steps) if short else 0
        may_be_short -= min(may_be_short, steps)
        phases += [phase(short, num_short)] if short and num_short else []
        phases += [phase(full, steps - num_short)]
    return Plan(tuple(phases), parameters.seed, parameters.checkpoint_every)


def weighted_datasets(
    parameters: TrainParameters, dataset: PackedDataset
) -> Iterator[tuple[PackedDataset, PackedDataset | None, int]]:
    """For each phase of the parameters, the dataset with its weights, that of its short rows, if any, and its steps.

    Phases of equal weights have the same datasets. Raises ValueError where the weights leave nothing to train on.
    """
    found: list[tuple[PackedDataset, PackedDataset | None]] = []
    for place, phase in parameters.weighted_steps().items():
        weights = phase.source_weights
        pair = next((pair for pair in found if pair[0].weights == weights), None)
        if pair is None:
            weighted = replace(dataset, weights=weights, stream=len(found))
            try:
                pair = weighted, short_rows(weighted)
            except ValueError as error:
                raise ValueError(f"train_model.{place}: {error}") from error
            found.append(pair)
        yield *pair, phase.steps


def short_rows(dataset: PackedDataset) -> PackedDataset | None:
    """The conversations that fit into short rows; None where these are less than half of the tokens.

    If a source has a share, at least half of its tokens must fit, too: short rows would repeat few conversations to
    reach the share. Raises ValueError where the weights leave nothing to train on.
    """
    factors, tokens = dataset.source_factors(), dataset.source_tokens()
    if dataset.row_length <= SHORT_ROW:
        return None
    short = replace(dataset, spans=dataset.spans.not_longer(SHORT_ROW), row_length=SHORT_ROW)
    has_share = np.array([isinstance(dataset.weights.get(name), str) for name in dataset.source_names])
    fitting = short.source_tokens()
    if 2 * factors @ fitting < factors @ tokens or (2 * fitting < tokens)[has_share].any():
        return None
    short.source_factors()  # raises ValueError before the first step
    return short


def log_weights(phases: Sequence[tuple[PackedDataset, int]]) -> None:
    """Log the share of each source in each phase, and the weights of sources that are not there."""
    dataset, weighted = phases[0][0], {name for dataset, _ in phases for name in dataset.weights}
    found = [name for name, tokens in zip(dataset.source_names, dataset.source_tokens(), strict=True) if tokens]
    if unknown := ", ".join(sorted(weighted.difference(found))):
        log(STAGE, f"no conversations of {unknown}: their weights are ignored; there are {', '.join(found)}")
    for number, (dataset, steps) in enumerate(phases, start=1):
        place = f"phase {number} of {len(phases)}, {steps} steps, " if len(phases) > 1 else ""
        read = describe_factors(dataset.source_names, dataset.source_factors(), dataset.source_tokens())
        log(STAGE, f"{place}tokens of an epoch by source (times that each conversation is read): {read}")


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
    every = max(1, trainer.steps // CURVE_POINTS)
    with catch_sigterm() as stop_requested, Display(trainer) as display:
        for phase, rows in plan.steps_after(trainer.completed_steps):
            of_step = trainer.step(phase.dataset.batches(rows, phase.rows_per_batch, group.rank, group.size))
            display.update(len(rows), phase.dataset.row_length)
            done, last = trainer.completed_steps, trainer.completed_steps == trainer.steps
            watch.check(done, of_step.loss, partial(describe_conversations, phase.dataset, rows, vocabulary))
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
