"""The loop of a training run, from its checkpoint to its learning curve and the weights that it ends with."""

import math
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from chatmill.pipeline.manifest import MANIFEST_NAME
from chatmill.pipeline.progress import log
from chatmill.run_display import show_progress
from chatmill.training.chains import Row
from chatmill.training.checkpoint import SIGTERM_EXIT_CODE, Checkpoint, catch_sigterm, run_fingerprint
from chatmill.training.distributed import Group, check_equal
from chatmill.training.new_model import initial_files
from chatmill.training.packing import Batch, PackedDataset
from chatmill.training.plan import STAGE, Plan
from chatmill.training.train_parameters import Keep, Precision, TrainParameters
from chatmill.training.trainer import LossTotals, Trainer

# The part of the validation set on which a run is measured.

MAX_TOKENS = 16384  # of a validation, over all processes, about


class Validation(NamedTuple):
    """The batches on which a run is measured, and the sources of their conversations, if there are several."""

    batches: list[Batch]
    sources: dict[int, str]  # by their numbers in the batches


def pooled_validation(dataset: PackedDataset, rows_per_batch: int, group: Group) -> Validation:
    """This process's batches of random conversations of all sources, about MAX_TOKENS over all processes."""
    rows = _rows(dataset, MAX_TOKENS)
    read = [conversation for row in rows for conversation in row.conversations]
    found = np.unique(dataset.sources_of(dataset.spans.starts[np.array(read, np.int64)])).tolist()
    sources = {number: dataset.source_names[number] for number in found} if len(found) > 1 else {}
    return Validation(dataset.batches(rows, rows_per_batch, group.rank, group.size), sources)


def _rows(dataset: PackedDataset, tokens: float) -> list[Row]:
    return list(islice(dataset.epoch(0, 0), max(1, -(-int(tokens) // dataset.row_length))))


# The learning curve of a run, train.tsv, which grows by a line at a time while the run goes on.

HEADER = "step\tloss\tbits_per_byte\tvalidation_bits_per_byte\tlearning_rate\tgradient_norm\n"
OF_SOURCE = "\tvalidation_bits_per_byte/"  # and its name


class CurveFile:
    """The curve so far, and the file in which others may read it; without a file, the curve alone.

    It has a column for each of the sources that validation tells apart.
    """

    def __init__(self, file: Path | None, sources: Iterable[str] = ()) -> None:
        self._file = file
        columns = (OF_SOURCE + " ".join(name.split()) for name in sources)  # no tab or end of a line
        self.restart(HEADER.removesuffix("\n") + "".join(columns) + "\n")

    def restart(self, text: str) -> None:
        """Replace the curve by an earlier one, from which the run resumes."""
        self.text = text
        self._write("w", text)

    def append(
        self, step: int, since_last: LossTotals, held_out: Sequence[LossTotals], rate: float, norm: float | None
    ) -> None:
        """Add a line: the losses of training since the line before, and those of validation, if measured."""
        own = [since_last.loss, since_last.bits_per_byte, held_out[0].bits_per_byte, rate, norm]
        numbers = [*own, *(of_source.bits_per_byte for of_source in held_out[1:])]
        line = "\t".join([str(step), *("" if number is None else f"{number:.6g}" for number in numbers)]) + "\n"
        self.text += line
        self._write("a", line)

    def complete(self) -> None:
        """Make sure that the file has the whole curve. Raises OSError where it cannot be written."""
        if self._file and not (self._file.exists() and self._file.read_text(encoding="utf-8") == self.text):
            self._file.write_text(self.text, encoding="utf-8")

    def _write(self, mode: str, text: str) -> None:
        if self._file:
            with suppress(OSError), self._file.open(mode, encoding="utf-8") as file:  # a full disk ends no run
                file.write(text)


# The weights that a run ends with: those of its last step, or of the step that was best on validation.


class KeptWeights:
    """Keeps one copy of the best weights so far, on the CPU of the main process; for `last`, none.

    Where the sources have weights, `shares` has the share of each and its batches, on which the best are chosen.
    """

    def __init__(self, keep: Keep, shares: Sequence[tuple[float, list[Batch]]] = ()) -> None:
        self._keep, self._shares = keep, shares
        self.step, self.bits_per_byte = 0, math.inf
        self._weights: dict[str, Tensor] = {}

    def keep_if_better(self, trainer: Trainer, bits_per_byte: float | None) -> None:
        """Copy the trainer's weights if they need fewer bits per byte on validation than the best ones so far.

        `bits_per_byte` is that of all sources together, None where nothing was measured. Where the sources have
        weights, their weighted mean is measured here, and compared in its place.
        """
        if self._keep == "last" or bits_per_byte is None:
            return
        if self._shares:
            measured = [(share, trainer.evaluate(batches)[0].bits_per_byte) for share, batches in self._shares]
            known = [(share, bits) for share, bits in measured if bits is not None]
            total = sum(share for share, _ in known)
            bits_per_byte = sum(share * bits for share, bits in known) / total if known else math.inf
        if bits_per_byte >= self.bits_per_byte:
            return
        self.step, self.bits_per_byte = trainer.completed_steps, bits_per_byte
        for name, weight in trainer.model.state_dict().items():
            full = trainer.group.gather_full(weight)
            if full is not None:
                self._weights.setdefault(name, torch.empty_like(full)).copy_(full)

    def final(self, trainer: Trainer) -> dict[str, Tensor]:
        """The full weights to write, in the main process; where nothing was measured, those of the last step."""
        if self.step:
            return self._weights
        self.step = trainer.completed_steps
        weights: dict[str, Tensor] = trainer.group.gather_full(trainer.model.state_dict())
        return weights

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "bits_per_byte": self.bits_per_byte, "weights": self._weights}

    def load_state_dict(self, state: dict[str, Any], *, is_main_process: bool) -> None:
        self.step, self.bits_per_byte = state["step"], state["bits_per_byte"]
        self._weights = {name: weight.clone() for name, weight in state["weights"].items()} if is_main_process else {}

    def describe(self) -> str:
        """The step whose weights were best, and how good they were; empty where the last ones are kept."""
        if not self.step:
            return ""
        place = "validation, weighted as the sources are at the end" if self._shares else "validation"
        return f"kept the weights of step {self.step:,}: {self.bits_per_byte:.4f} bits per byte on {place}"


def keep_weights(parameters: TrainParameters, validation: PackedDataset, plan: Plan, group: Group) -> KeptWeights:
    """The weights to keep: the best are those for the sources as they are weighted.

    Raises ValueError where the validation set has none of these.
    """
    last = plan.phases[-1]
    if parameters.keep == "last":
        return KeptWeights("last")
    if not len(validation.spans.starts):
        raise ValueError("train_model.keep = best: the validation set is empty: set keep: last")
    if not last.dataset.weights:
        return KeptWeights("best")
    shares, found = last.dataset.source_shares(), []
    for source in np.flatnonzero(shares * validation.source_tokens()):
        of_source = validation.of_source(int(source))
        rows = _rows(of_source, MAX_TOKENS * shares[source])
        batches = of_source.batches(rows, last.rows_per_batch, group.rank, group.size)
        found.append((float(shares[source]), batches))
    if not found:
        names = ", ".join(name for name, share in zip(validation.source_names, shares, strict=True) if share)
        raise ValueError(f"train_model.keep = best: the validation set has no conversations of {names}: set keep: last")
    return KeptWeights("best", found)


# The loop.

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
    trainer: Trainer, validation: Validation, plan: Plan, checkpoint: Checkpoint, curve: CurveFile, kept: KeptWeights
) -> None:
    """Train from the checkpoint, or from the start; record the curve and the weights to keep."""
    group, sums = trainer.group, resume(checkpoint, trainer, curve, kept)
    every = max(1, trainer.steps // CURVE_POINTS)
    trainer.logged_steps = {*range(every, trainer.steps, every), trainer.steps}
    with catch_sigterm() as stop_requested, show_progress(trainer) as show:
        for phase, rows in plan.steps_after(trainer.completed_steps):
            of_step = trainer.step(phase.dataset.batches(rows, phase.rows_per_batch, group.rank, group.size))
            done, last = trainer.completed_steps, trainer.completed_steps == trainer.steps
            if not math.isfinite(of_step.loss):
                raise ValueError(f"step {done}: the loss is {of_step.loss}: lower train_model.learning_rate")
            sums, ending = sums.plus(of_step), group.total(stop_requested.is_set()) > 0
            show(len(rows) * phase.dataset.row_length, sums)
            if done in trainer.logged_steps:
                validates = last or done % (every * POINTS_PER_VALIDATION) == 0
                batches = validation.batches if validates else []  # without batches, all bits per byte are None
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
    state = group.broadcast(checkpoint.load() if group.is_main_process else None)
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
