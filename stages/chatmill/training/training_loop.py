"""The loop of a training run, from its checkpoint to its learning curve, and how its steps are divided into batches.

A run begins with short rows, in which to repeat what was said is learnt sooner, and a step takes less time. Each phase
of train_model.phases, with weights of the sources of its own, may have steps of both kinds.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import NoReturn

import numpy as np

from chatmill.pipeline.progress import log
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary
from chatmill.training.chains import Row, describe_shares
from chatmill.training.checkpoint import SIGTERM_EXIT_CODE, Checkpoint, catch_sigterm
from chatmill.training.display import Display, LossWatch, PhaseLength, RunLength, count_steps, describe_conversations
from chatmill.training.distributed import Group
from chatmill.training.estimate import flops_per_token
from chatmill.training.packing import PackedDataset
from chatmill.training.state_file import tensors_of
from chatmill.training.train_parameters import TrainParameters, Weight
from chatmill.training.trainer import LossTotals, Trainer
from chatmill.training.validation import CurveFile, KeptWeights, Validation, curve_line

STAGE = "train_model"
MAX_BATCH_LOGITS = {"cpu": 1 << 23, "cuda": 1 << 28}  # the gradients of several batches are added up
CURVE_POINTS = 100
POINTS_PER_VALIDATION = 10
SHORT_ROW = 256  # tokens
SHORT_STEPS = 0.7  # share of the steps
MOST_REPEATS = 2.0  # of a conversation in short rows, in place of those of its source that do not fit

WeightedRows = tuple[PackedDataset, PackedDataset | None]  # rows of the context's length, and short ones, if any


@dataclass(frozen=True, slots=True)
class Phase:
    """Steps whose rows are of one dataset, and how these rows are divided into steps and batches."""

    dataset: PackedDataset
    steps: int
    rows_per_step: int
    rows_per_batch: int  # computed together; it divides a process's rows of a step, so that all batches have one shape

    @property
    def tokens(self) -> int:
        """The tokens of all steps."""
        return self.steps * self.rows_per_step * self.dataset.row_length


@dataclass(frozen=True, slots=True)
class Plan:
    """The phases of a run, the last of which has rows of the context's length."""

    phases: tuple[Phase, ...]
    seed: int
    checkpoint_every: int  # steps
    tokens_per_epoch: int
    padding: float  # the fraction of an epoch's tokens

    @property
    def length(self) -> RunLength:
        """The length of all phases together."""
        tokens = sum(phase.tokens for phase in self.phases)
        return RunLength(sum(phase.steps for phase in self.phases), tokens, self.tokens_per_epoch)

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
        own_rows = rows_per_step // group.size
        at_once = rows_at_once(own_rows, dataset.row_length, vocab_size, group.device.type)
        return Phase(dataset, steps, rows_per_step, at_once)

    weighted = list(weighted_datasets(parameters, dataset))
    tokens_per_epoch, padding = (dataset if parameters.phases else weighted[0][0]).measure_epoch(parameters.seed)
    steps = list(steps_of_phases(parameters, weighted, tokens_per_epoch, group.size))
    may_be_short = round(SHORT_STEPS * sum(steps))
    parts: list[list[Phase]] = []  # of each phase of the parameters
    for (full, short), total_steps in zip(weighted, steps, strict=True):
        num_short = min(may_be_short, total_steps) if short else 0
        may_be_short -= min(may_be_short, total_steps)
        short_part = [phase(short, num_short)] if short and num_short else []
        parts.append([*short_part, phase(full, total_steps - num_short)])
    if group.is_main_process and any(full.weights for full, _ in weighted):
        log_weights(parts)
    phases = tuple(chain.from_iterable(parts))
    return Plan(phases, parameters.seed, parameters.checkpoint_every, tokens_per_epoch, padding)


def steps_of_phases(
    parameters: TrainParameters, weighted: Sequence[WeightedRows], tokens_per_epoch: int, processes: int
) -> Iterator[int]:
    """The steps of each phase of the parameters: those that are given, or those that epochs of its own data take."""
    for phase, (full, short) in zip(parameters.weighted_steps().values(), weighted, strict=True):
        if phase.epochs is None:
            yield phase.steps or 0
            continue
        tokens = full.measure_epoch(parameters.seed)[0] if parameters.phases else tokens_per_epoch
        yield count_steps(phase.epochs, tokens, tokens_per_step(parameters, full, short, processes))


def tokens_per_step(
    parameters: TrainParameters, full: PackedDataset, short: PackedDataset | None, processes: int
) -> float:
    """The mean tokens of a step, if most steps have short rows where there are any."""
    long_share = 1.0 if short is None else 1 - SHORT_STEPS
    return sum(
        share * rows.row_length * share_rows(parameters.batch_size, parameters.context, rows.row_length, processes)
        for rows, share in ((full, long_share), (short or full, 1 - long_share))
    )


def weigh(dataset: PackedDataset, weights: Mapping[str, Weight], place: str, stream: int = 0) -> PackedDataset:
    """The dataset with these weights. Raises ValueError where they leave nothing to train on."""
    weighted = replace(dataset, weights=weights, stream=stream)
    try:
        weighted.source_factors()
    except ValueError as error:
        raise ValueError(f"train_model.{place}: {error}") from error
    return weighted


def weighted_datasets(parameters: TrainParameters, dataset: PackedDataset) -> Iterator[WeightedRows]:
    """For each phase of the parameters, the dataset with its weights, and that of its short rows, if any.

    Phases of equal weights have the same datasets. Raises ValueError where the weights leave nothing to train on.
    """
    found: list[WeightedRows] = []
    for place, phase in parameters.weighted_steps().items():
        weights = phase.source_weights
        pair = next((pair for pair in found if pair[0].weights == weights), None)
        if pair is None:
            weighted = weigh(dataset, weights, place, len(found))
            pair = weighted, short_rows(weighted, place)
            found.append(pair)
        yield pair


def short_rows(dataset: PackedDataset, place: str) -> PackedDataset | None:
    """The conversations that fit into short rows; None where these are less than half of the tokens.

    If a source has a share, at least half of its tokens must fit, too: short rows would repeat few conversations to
    reach the share. Conversations of a source with a factor are read more often, up to MOST_REPEATS times, in place of
    those that do not fit. Raises ValueError where the weights leave nothing to train on.
    """
    factors, tokens = dataset.source_factors(), dataset.source_tokens()
    if dataset.row_length <= SHORT_ROW:
        return None
    short = replace(dataset, spans=dataset.spans.not_longer(SHORT_ROW), row_length=SHORT_ROW)
    has_share = np.array([isinstance(dataset.weights.get(name), str) for name in dataset.source_names])
    fitting = short.source_tokens()
    if 2 * factors @ fitting < factors @ tokens or (2 * fitting < tokens)[has_share].any():
        return None
    if not dataset.weights:
        return weigh(short, {}, place, short.stream)
    repeats = np.minimum(MOST_REPEATS, tokens / np.maximum(fitting, 1)).tolist()
    given = ((name, dataset.weights.get(name, 1.0)) for name in dataset.source_names)
    weights = {
        name: weight if isinstance(weight, str) else weight * times
        for (name, weight), times in zip(given, repeats, strict=True)
    }
    return weigh(short, weights, place, short.stream)


def log_weights(phases: Sequence[Sequence[Phase]]) -> None:
    """Log the share of each source in the tokens of each phase, and the weights of sources that are not there."""
    dataset, weighted = phases[0][-1].dataset, {name for *_, part in phases for name in part.dataset.weights}
    found = [name for name, tokens in zip(dataset.source_names, dataset.source_tokens(), strict=True) if tokens]
    if unknown := ", ".join(sorted(weighted.difference(found))):
        log(STAGE, f"no conversations of {unknown}: their weights are ignored; there are {', '.join(found)}")
    for number, parts in enumerate(phases, start=1):
        steps = sum(part.steps for part in parts)
        place = f"phase {number} of {len(phases)}, {steps} steps, " if len(phases) > 1 else ""
        shares = np.average([part.dataset.source_shares() for part in parts], 0, [part.tokens for part in parts])
        read = describe_shares(dataset.source_names, shares, parts[-1].dataset.source_factors())
        log(STAGE, f"{place}tokens by source (times that each conversation is read in an epoch): {read}")


def rows_at_once(rows_per_step: int, row_length: int, vocab_size: int, device: str = "cpu") -> int:
    """The rows that are computed together: the largest divisor of a step's rows within MAX_BATCH_LOGITS."""
    most = max(1, MAX_BATCH_LOGITS.get(device, MAX_BATCH_LOGITS["cpu"]) // (row_length * vocab_size))
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
    validation: Validation,
    plan: Plan,
    checkpoint: Checkpoint,
    vocabulary: Vocabulary,
    curve: CurveFile,
    kept: KeptWeights,
) -> None:
    """Train from the checkpoint, or from the start; record the curve and the weights to keep."""
    watch, group = LossWatch(), trainer.group
    sums = resume(checkpoint, trainer, watch, curve, kept)
    every = max(1, trainer.steps // CURVE_POINTS)
    trainer.logged_steps = {*range(every, trainer.steps, every), trainer.steps}
    shown = Display(trainer, phase_lengths(plan, trainer), partial(log, STAGE))
    with catch_sigterm() as stop_requested, shown as display:
        for phase, rows in plan.steps_after(trainer.completed_steps):
            of_step = trainer.step(phase.dataset.batches(rows, phase.rows_per_batch, group.rank, group.size))
            display.update(len(rows), phase.dataset.row_length, of_step)
            done, last = trainer.completed_steps, trainer.completed_steps == trainer.steps
            watch.check(done, of_step.loss, partial(describe_conversations, phase.dataset, rows, vocabulary))
            sums, ending = sums.plus(of_step), group.total(stop_requested.is_set()) > 0
            if done in trainer.logged_steps:
                batches = validation.batches if last or done % (every * POINTS_PER_VALIDATION) == 0 else []
                held_out, of_sources = trainer.evaluate_sources(batches, [*validation.sources])
                kept.compare(trainer, held_out.bits_per_byte)
                rate, norm = trainer.optimizer.learning_rate, trainer.gradient_norm
                curve.append(curve_line(done, sums, held_out, rate, norm, of_sources))
                display.describe(sums)
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


def phase_lengths(plan: Plan, trainer: Trainer) -> list[PhaseLength]:
    """The steps of rows of one length, and the operations of each of these steps."""
    lengths: list[PhaseLength] = []
    for phase in plan.phases:
        row = phase.dataset.row_length
        operations = phase.rows_per_step * row * flops_per_token(trainer.model.config, row)
        if lengths and lengths[-1][1] == operations:
            lengths[-1] = lengths[-1][0] + phase.steps, operations
        else:
            lengths.append((phase.steps, operations))
    return lengths


def end_early(trainer: Trainer, saved: bool) -> NoReturn:
    """Log whether the state was saved, and exit."""
    if trainer.group.is_main_process:
        outcome = "the state is saved: run the same command to resume" if saved else "the state is not saved"
        log(STAGE, f"stopped by SIGTERM at step {trainer.completed_steps} of {trainer.steps}: {outcome}")
    sys.exit(SIGTERM_EXIT_CODE)
