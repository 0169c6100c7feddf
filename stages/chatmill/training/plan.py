"""How a run is divided: into steps with short rows and with rows of the context's length, and steps into batches.

A run begins with short rows: with them a model learns sooner to repeat what was said, and a step takes less time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from chatmill.pipeline.progress import log
from chatmill.training.chains import Row
from chatmill.training.distributed import Group
from chatmill.training.packing import PackedDataset
from chatmill.training.train_parameters import TrainParameters

STAGE = "train_model"
MAX_BATCH_LOGITS = {"cpu": 1 << 23, "cuda": 1 << 28}  # the gradients of several batches are added up
BATCH_VOCAB = 1 << 12  # of a larger vocabulary the loss is computed in blocks, and activations are what fills memory
SHORT_ROW = 256  # tokens
SHORT_SHARE = 0.7  # of the steps
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
        for phase in self.phases:
            skipped = min(completed, phase.steps)
            completed -= skipped
            rows = phase.dataset.endless_rows(self.seed)
            for _ in islice(rows, skipped * phase.rows_per_step):
                pass
            for _ in range(skipped, phase.steps):
                yield phase, list(islice(rows, phase.rows_per_step))


def plan_steps(parameters: TrainParameters, dataset: PackedDataset, vocab_size: int, group: Group) -> Plan:
    """Divide the steps into phases, and a step, of train_model.batch_size tokens, into rows and batches."""
    if group.is_main_process and (cut := dataset.spans.num_cut):
        read = f"{int(dataset.spans.packed_lengths.sum()):,} of {len(dataset.split.ids):,} tokens together"
        longer = f"{cut:,} conversations are longer than train_model.context = {parameters.context}"
        log(STAGE, f"{longer}: only their last messages are read, {read}")
    full = replace(dataset, weights=parameters.source_weights)
    short = short_rows(full)
    parts = [full] if short is None else [short, full]
    rows_per_step = [share_rows(parameters, part.row_length, group.size) for part in parts]
    tokens_per_epoch, padding = full.measure_epoch(parameters.seed)
    steps = parameters.steps
    if steps is None:
        assert parameters.epochs is not None, "either steps or epochs are a number"
        shares = [1.0] if short is None else [SHORT_SHARE, 1 - SHORT_SHARE]
        mean = sum(share * part.row_length * n for share, part, n in zip(shares, parts, rows_per_step, strict=True))
        steps = max(1, round(parameters.epochs * tokens_per_epoch / mean))  # the mean tokens of a step
    num_short = round(SHORT_SHARE * steps)
    steps_per_part = [steps] if short is None else [num_short, steps - num_short]
    phases = []
    for part, part_steps, rows in zip(parts, steps_per_part, rows_per_step, strict=True):
        at_once = rows_at_once(rows // group.size, part.row_length, vocab_size, group.device.type)
        phases.append(Phase(part, part_steps, rows, at_once))
    if group.is_main_process and full.weights:
        log_weights(phases)
    return Plan(tuple(phases), parameters.seed, parameters.checkpoint_every, tokens_per_epoch, padding)


def short_rows(dataset: PackedDataset) -> PackedDataset | None:
    """The conversations that fit into short rows; None where these are less than half of the tokens.

    If a source has a share, a text such as 30%, at least half of its tokens must fit, too: short rows would repeat few
    conversations to reach the share. Where any source has a weight, all others but those with a share are read more
    often, up to MOST_REPEATS times, in place of their conversations that do not fit, so that the weights hold.
    """
    factors, tokens = dataset.source_factors(), dataset.source_tokens()
    if dataset.row_length <= SHORT_ROW:
        return None
    short = replace(dataset, spans=dataset.spans.not_longer(SHORT_ROW), row_length=SHORT_ROW)
    has_share = np.array([isinstance(dataset.weights.get(name), str) for name in dataset.source_names])
    fitting = short.source_tokens()
    are_few = factors @ fitting < factors @ tokens / 2
    if are_few or (fitting[has_share] < tokens[has_share] / 2).any():
        return None
    if not dataset.weights:
        return short
    repeats = np.minimum(MOST_REPEATS, tokens / np.maximum(fitting, 1)).tolist()
    weights = {name: dataset.weights.get(name, 1.0) for name in dataset.source_names}
    for (name, weight), times in zip([*weights.items()], repeats, strict=True):
        weights[name] = weight if isinstance(weight, str) else weight * times
    return replace(short, weights=weights)


def log_weights(phases: list[Phase]) -> None:
    """Log the share of each source in the tokens, and the weights of sources that are not there."""
    dataset = phases[-1].dataset
    found = [name for name, tokens in zip(dataset.source_names, dataset.source_tokens(), strict=True) if tokens]
    if unknown := ", ".join(sorted({*dataset.weights}.difference(found))):
        log(STAGE, f"no conversations of {unknown}: their weights are ignored; there are {', '.join(found)}")
    shares = np.average([one.dataset.source_shares() for one in phases], 0, [one.tokens for one in phases])
    parts = zip(dataset.source_names, shares, dataset.source_factors(), strict=True)
    read = ", ".join(f"{name} {share:.1%} ({factor:.3g})" for name, share, factor in parts if share)
    log(STAGE, f"tokens by source (times that each conversation is read in an epoch): {read}")


def rows_at_once(rows_per_step: int, row_length: int, vocab_size: int, device: str = "cpu") -> int:
    """The rows that are computed together: the largest divisor of a step's rows within MAX_BATCH_LOGITS."""
    most = max(1, MAX_BATCH_LOGITS[device] // (row_length * min(vocab_size, BATCH_VOCAB)))
    return max(rows for rows in range(1, rows_per_step + 1) if rows_per_step % rows == 0 and rows <= most)


def share_rows(parameters: TrainParameters, row_length: int, processes: int) -> int:
    """The rows of a step, of all processes together. Raises ValueError where the processes cannot share them evenly."""
    rows = parameters.batch_size // row_length
    if rows % processes:
        raise ValueError(
            f"train_model.batch_size = {parameters.batch_size} makes {rows} rows of {row_length} tokens, which "
            f"{processes} processes cannot share evenly: expected a multiple of {processes * row_length}"
        )
    return rows
