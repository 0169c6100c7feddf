"""The loop of a training run, from its checkpoint to its learning curve."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from chatmill.pipeline.manifest import MANIFEST_NAME
from chatmill.pipeline.progress import log
from chatmill.run_display import Display, Samples, describe_conversations
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary
from chatmill.training.checkpoint import SIGTERM_EXIT_CODE, Checkpoint, catch_sigterm, run_fingerprint
from chatmill.training.distributed import Group, check_equal
from chatmill.training.new_model import initial_files
from chatmill.training.plan import STAGE, Plan
from chatmill.training.train_parameters import Precision, TrainParameters
from chatmill.training.trainer import LossTotals, Trainer
from chatmill.training.validation import CurveFile, KeptWeights, Validation

NOT_FOLLOWED = {"processes", "shard", "initial"}  # may differ; an initial model is known by its files, not by its path
CURVE_POINTS = 100
POINTS_PER_VALIDATION = 10


def open_checkpoint(
    parameters: TrainParameters, precision: Precision, folders: Sequence[Path], group: Group
) -> Checkpoint:
    """The states of runs with these parameters, inputs and code: those of others are not resumed.

    Raises ValueError where another process has other ones.
    """
    followed = parameters.model_dump(mode="json", exclude=NOT_FOLLOWED) | {"precision": precision}
    inputs = [folder / MANIFEST_NAME for folder in folders]
    inputs += initial_files(parameters.initial) if parameters.initial else []
    fingerprint = run_fingerprint(followed, inputs)
    check_equal(fingerprint, group)
    return Checkpoint(fingerprint)


def train(
    trainer: Trainer,
    validation: Validation,
    plan: Plan,
    checkpoint: Checkpoint,
    vocabulary: Vocabulary,
    curve: CurveFile,
    kept: KeptWeights,
    samples: Samples,
) -> None:
    """Train from the checkpoint, or from the start; record the curve and the weights to keep, and show samples."""
    group, sums = trainer.group, resume(checkpoint, trainer, curve, kept)
    every = max(1, trainer.steps // CURVE_POINTS)
    trainer.logged_steps = {*range(every, trainer.steps, every), trainer.steps}
    with catch_sigterm() as stop_requested, Display(trainer, samples) as display:
        for phase, rows in plan.steps_after(trainer.completed_steps):
            of_step = trainer.step(phase.dataset.batches(rows, phase.rows_per_batch, group.rank, group.size))
            done, last = trainer.completed_steps, trainer.completed_steps == trainer.steps
            if not math.isfinite(of_step.loss):
                read = describe_conversations(phase.dataset, rows, vocabulary)
                problem = f"step {done}: the loss is {of_step.loss}: lower train_model.learning_rate"
                raise ValueError(f"{problem}, or look at the conversations of the step: {read}")
            sums, ending = sums.plus(of_step), group.total(stop_requested.is_set()) > 0
            display.update(len(rows) * phase.dataset.row_length, sums)
            if done in trainer.logged_steps:
                batches = validation.batches if last or done % (every * POINTS_PER_VALIDATION) == 0 else []
                held_out = trainer.evaluate(batches, [*validation.sources])
                kept.keep_if_better(trainer, held_out[0].bits_per_byte)
                curve.append(done, sums, held_out, trainer.optimizer.learning_rate, trainer.gradient_norm)
                sums = LossTotals()
            if (done % plan.checkpoint_every == 0 or ending) and not last:
                state = {"curve": curve.text, "sums": tuple(sums), "kept": kept.state_dict()}
                state["trainer"] = group.gather_full(trainer.state_dict())
                saved = group.is_main_process and checkpoint.save(state)
                if ending:
                    end_early(trainer, saved)
    if group.is_main_process and (best := kept.describe()):
        log(STAGE, best)


def resume(checkpoint: Checkpoint, trainer: Trainer, curve: CurveFile, kept: KeptWeights) -> LossTotals:
    """Restore the state of the checkpoint, if there is one; returns the losses since the last point of the curve."""
    group = trainer.group
    state = group.outline(checkpoint.load() if group.is_main_process else None)
    if not state:
        return LossTotals()
    curve.restart(state["curve"])
    kept.load_state_dict(state["kept"], is_main_process=group.is_main_process)
    trainer.load_state_dict(state["trainer"])
    if group.is_main_process:
        log(STAGE, f"resumes after step {trainer.completed_steps:,} of {trainer.steps:,}")
    return LossTotals(*state["sums"])


def end_early(trainer: Trainer, saved: bool) -> NoReturn:
    """Log whether the state was saved, and exit."""
    if trainer.group.is_main_process:
        outcome = "the state is saved: run the same command to resume" if saved else "the state is not saved"
        log(STAGE, f"stopped by SIGTERM at step {trainer.completed_steps} of {trainer.steps}: {outcome}")
    sys.exit(SIGTERM_EXIT_CODE)
