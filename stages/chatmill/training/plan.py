"""How a run is divided: into steps with short rows and with rows of the context's length, and steps into batches.

A run begins with short rows, in which to repeat what was said is learnt sooner, and a step takes less time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from chatmill.pipeline.progress import log
from chatmill.training.chains import Row, describe_shares
from chatmill.training.distributed import Group
from chatmill.training.packing import PackedDataset
from chatmill.training.train_parameters import TrainParameters, Weight

STAGE = "train_model"
MAX_BATCH_LOGITS = {"cpu": 1 << 23, "cuda": 1 << 28}  # the gradients of several batches are added up
BATCH_VOCAB = 1 << 12  # of a larger vocabulary the loss is computed in blocks, and activations are what fills memory
SHORT_ROW = 256  # tokens
SHORT_STEPS = 0.7  # share of the steps
MOST_REPEATS = 2.0  # of a conversation in short rows, in place of those of its source that do not fit


@dataclass(frozen=True, slots=True)
class Phase:
    """Steps whose rows are of one dataset, and how these rows are divided into steps and batches."""

    dataset: PackedDataset
    steps: int
    rows_per_step: int
    rows_per_batch: int  # computed together; it divides a process's rows of a step, so that all batches have one shape

    @property
    def tokens(self) -> int:
        return self.steps * self.rows_per_step * self.dataset.row_length


@dataclass(frozen=True, slots=True)
class Plan:
    """The phases of a run: one of short rows, if most conversations fit, and one of the context's length."""

    phases: tuple[Phase, ...]
    seed: int
    checkpoint_every: int  # steps
    tokens_per_epoch: int
    padding: float  # the fraction of an epoch's tokens

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def tokens(self) -> int:
        return sum(phase.tokens for phase in self.phases)

    @property
    def epochs(self) -> float:
        """How often the training set is read."""
        return self.tokens / self.tokens_per_epoch

    def steps_after(self, completed: int) -> Iterator[tuple[Phase, list[Row]]]:
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
    if group.is_main_process and (cut := dataset.spans.num_cut):
        read = f"only their last messages are read, {total:,} of {len(dataset.split.ids):,} tokens together"
        log(STAGE, f"{cut:,} conversations are longer than train_model.context = {parameters.context}: {read}")
    if group.is_main_process and total < parameters.context:
        log(STAGE, f"the conversations have {total} tokens together: lower train_model.context = {parameters.context}")

    def phase(dataset: PackedDataset, steps: int) -> Phase:
        rows_per_step = share_rows(parameters.batch_size, parameters.context, dataset.row_length, group.size)
        own_rows = rows_per_step // group.size
        at_once = rows_at_once(own_rows, dataset.row_length, vocab_size, group.device.type)
        return Phase(dataset, steps, rows_per_step, at_once)

    full = weigh(dataset, parameters.source_weights)
    short = short_rows(full)
    tokens_per_epoch, padding = full.measure_epoch(parameters.seed)
    steps = parameters.steps
    if steps is None:
        assert parameters.epochs is not None, "one of them is a number"
        in_each = tokens_per_step(parameters, full, short, group.size)
        steps = max(1, round(parameters.epochs * tokens_per_epoch / in_each))
    num_short = round(SHORT_STEPS * steps) if short else 0
    phases = [phase(short, num_short)] if short and num_short else []
    phases.append(phase(full, steps - num_short))
    if group.is_main_process and full.weights:
        log_weights(phases)
    return Plan(tuple(phases), parameters.seed, parameters.checkpoint_every, tokens_per_epoch, padding)


def tokens_per_step(
    parameters: TrainParameters, full: PackedDataset, short: PackedDataset | None, processes: int
) -> float:
    """The mean tokens of a step, if most steps have short rows where there are any."""
    long_share = 1.0 if short is None else 1 - SHORT_STEPS
    return sum(
        share * rows.row_length * share_rows(parameters.batch_size, parameters.context, rows.row_length, processes)
        for rows, share in ((full, long_share), (short or full, 1 - long_share))
    )


def weigh(dataset: PackedDataset, weights: Mapping[str, Weight]) -> PackedDataset:
    """The dataset with these weights. Raises ValueError where they leave nothing to train on."""
    weighted = replace(dataset, weights=weights)
    try:
        weighted.source_factors()
    except ValueError as error:
        raise ValueError(f"train_model.source_weights: {error}") from error
    return weighted


def short_rows(dataset: PackedDataset) -> PackedDataset | None:
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
        return weigh(short, {})
    repeats = np.minimum(MOST_REPEATS, tokens / np.maximum(fitting, 1)).tolist()
    given = ((name, dataset.weights.get(name, 1.0)) for name in dataset.source_names)
    weights = {
        name: weight if isinstance(weight, str) else weight * times
        for (name, weight), times in zip(given, repeats, strict=True)
    }
    return weigh(short, weights)


def log_weights(phases: list[Phase]) -> None:
    """Log the share of each source in the tokens, and the weights of sources that are not there."""
    dataset = phases[-1].dataset
    found = [name for name, tokens in zip(dataset.source_names, dataset.source_tokens(), strict=True) if tokens]
    if unknown := ", ".join(sorted({*dataset.weights}.difference(found))):
        log(STAGE, f"no conversations of {unknown}: their weights are ignored; there are {', '.join(found)}")
    shares = np.average([one.dataset.source_shares() for one in phases], 0, [one.tokens for one in phases])
    read = describe_shares(dataset.source_names, shares, dataset.source_factors())
    log(STAGE, f"tokens by source (times that each conversation is read in an epoch): {read}")


def rows_at_once(rows_per_step: int, row_length: int, vocab_size: int, device: str = "cpu") -> int:
    """The rows that are computed together: the largest divisor of a step's rows within MAX_BATCH_LOGITS."""
    most = max(1, MAX_BATCH_LOGITS[device] // (row_length * min(vocab_size, BATCH_VOCAB)))
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
