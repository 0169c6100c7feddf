"""The loop of a training run, from its checkpoint to its learning curve."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from chatmill.pipeline.manifest import MANIFEST_NAME
from chatmill.pipeline.progress import log
from chatmill.run_display import Display, LossWatch, Samples, describe_conversations
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary
from chatmill.training.checkpoint import SIGTERM_EXIT_CODE, Checkpoint, catch_sigterm, run_fingerprint, tensors_of
from chatmill.training.distributed import Group, check_equal
from chatmill.training.new_model import initial_files
from chatmill.training.plan import STAGE, Plan
from chatmill.training.train_parameters import Precision, TrainParameters
from chatmill.training.trainer import LossTotals, Trainer
from chatmill.training.validation import CurveFile, KeptWeights, Validation, curve_line

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
    watch, group = LossWatch(), trainer.group
    sums = resume(checkpoint, trainer, watch, curve, kept)
    every = max(1, trainer.steps // CURVE_POINTS)
    trainer.logged_steps = {*range(every, trainer.steps, every), trainer.steps}
    with catch_sigterm() as stop_requested, Display(trainer, samples) as display:
        for phase, rows in plan.steps_after(trainer.completed_steps):
            of_step = trainer.step(phase.dataset.batches(rows, phase.rows_per_batch, group.rank, group.size))
            done, last = trainer.completed_steps, trainer.completed_steps == trainer.steps
            watch.check(done, of_step.loss, partial(describe_conversations, phase.dataset, rows, vocabulary))
            sums, ending = sums.plus(of_step), group.total(stop_requested.is_set()) > 0
            display.update(len(rows) * phase.dataset.row_length, sums)
            if done in trainer.logged_steps:
                batches = validation.batches if last or done % (every * POINTS_PER_VALIDATION) == 0 else []
                held_out, of_sources = trainer.evaluate_sources(batches, [*validation.sources])
                kept.keep_if_better(trainer, held_out.bits_per_byte)
                rate, norm = trainer.optimizer.learning_rate, trainer.gradient_norm
                curve.append(curve_line(done, sums, held_out, rate, norm, of_sources))
                sums = LossTotals()
            if (done % plan.checkpoint_every == 0 or ending) and not last:
                state = {"curve": curve.text, "sums": tuple(sums), "watch": watch.state_dict()}
                state |= {"trainer": trainer.state_dict(), "kept": kept.state_dict()}
                gathered = group.gather_each(tensors_of(state))
                saved = group.is_main_process and checkpoint.save(state, gathered)
                for _ in gathered:  # all processes take part, also where the main one could not write the first
                    pass
                if ending:
                    end_early(trainer, saved)
    if group.is_main_process and (best := kept.describe()):
        log(STAGE, best)


def resume(
    checkpoint: Checkpoint, trainer: Trainer, watch: LossWatch, curve: CurveFile, kept: KeptWeights
) -> LossTotals:
    """Restore the state of the checkpoint, if there is one; returns the losses since the last point of the curve."""
    group = trainer.group
    state = group.outline(checkpoint.load() if group.is_main_process else None)
    if not state:
        return LossTotals()
    curve.restart(state["curve"])
    kept.load_state_dict(state["kept"], is_main_process=group.is_main_process)
    trainer.load_state_dict(state["trainer"])
    watch.load_state_dict(state["watch"])
    if group.is_main_process:
        log(STAGE, f"resumes after step {trainer.completed_steps:,} of {trainer.steps:,}")
    return LossTotals(*state["sums"])


def end_early(trainer: Trainer, saved: bool) -> NoReturn:
    """Log whether the state was saved, and exit."""
    if trainer.group.is_main_process:
        outcome = "the state is saved: run the same command to resume" if saved else "the state is not saved"
        log(STAGE, f"stopped by SIGTERM at step {trainer.completed_steps} of {trainer.steps}: {outcome}")
    sys.exit(SIGTERM_EXIT_CODE)
