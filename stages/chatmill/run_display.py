"""How long the remaining steps of a run take, by the time of those measured."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np

from chatmill.model.chat_model import ChatModel
from chatmill.pipeline.progress import Clock, LineSchedule, duration, on_terminal, progress_bar
from chatmill.run_estimate import flops_per_token, peak_flops
from chatmill.tokenizer.vocabulary.vocabulary import TEXT_KINDS, Vocabulary
from chatmill.training.chains import Row
from chatmill.training.distributed import DeviceKind
from chatmill.training.packing import PackedDataset
from chatmill.training.plan import RunLength
from chatmill.training.trainer import LossTotals, Trainer

PhaseLength = tuple[int, float]  # steps, and operations of each


class Pace:
    """The pace of a run from its first step in this process.

    The time of a step is proportional to its operations, at the pace of its phase, or of the one before until that is
    measured. The first step of a phase may compile; what it takes longer is expected of the first steps to come.
    """

    def __init__(self, phases: Sequence[PhaseLength], completed: int = 0, clock: Clock = time.monotonic) -> None:
        self._phases: list[PhaseLength] = []  # that remain, the current one first
        for steps, operations in phases:
            skipped = min(completed, steps)
            completed -= skipped
            if steps > skipped:
                self._phases.append((steps - skipped, operations))
        self.measured = 0  # steps of the current phase, but its first
        self._is_first, self._seconds = True, 0.0
        self._pace, self._extra = 0.0, 0.0  # seconds an operation, and seconds more for a first step
        self._first_step: tuple[float, float] | None = None  # operations and seconds
        self._clock, self._last = clock, clock()

    def finish_step(self) -> None:
        """Record that a step is complete."""
        now = self._clock()
        seconds, self._last = now - self._last, now
        steps, operations = self._phases[0]
        if self._is_first:
            self._first_step, self._is_first, self._seconds, self.measured = (operations, seconds), False, 0.0, 0
        else:
            self._seconds, self.measured = self._seconds + seconds, self.measured + 1
            self._pace = self._seconds / (self.measured * operations)
            if self._first_step:
                self._extra = max(0.0, self._first_step[1] - self._first_step[0] * self._pace)
        self._phases[0] = (steps - 1, operations)
        if steps == 1:
            self._phases, self._is_first = self._phases[1:], True

    @property
    def seconds_left(self) -> float | None:
        """Seconds of the remaining steps; None before any was measured."""
        firsts = len(self._phases) - (not self._is_first)
        operations = sum(steps * operations for steps, operations in self._phases)
        return self._pace * operations + self._extra * firsts if self._pace else None


# How long a run is, in steps and in epochs, and what is logged about it before it begins.

FEWEST_EPOCHS, MOST_EPOCHS = 0.5, 20  # a run outside of these is warned of


def describe_run(length: RunLength, model: ChatModel, memory: int, device: DeviceKind) -> Iterator[str]:
    """Lines about the size of a run, which needs so many bytes of memory in each process."""
    num_parameters = sum(weight.numel() for weight in model.parameters())
    place = "of the GPU" if device == "cuda" else "besides PyTorch itself"
    yield (
        f"{num_parameters:,} parameters, {length.tokens:,} tokens in {length.steps:,} steps: "
        f"{length.epochs:,.2f} epochs of {length.tokens_per_epoch:,} tokens; "
        f"about {memory / 1e9:.1f} GB of memory {place}"
    )
    if warning := length_warning(length):
        yield f"warning: {warning}"


def length_warning(length: RunLength) -> str | None:
    """What is wrong with a run that is very short or long for its data, and how long it should be."""
    steps_per_token = length.steps / length.tokens
    if length.epochs < FEWEST_EPOCHS:
        steps = math.ceil(FEWEST_EPOCHS * length.tokens_per_epoch * steps_per_token)
        return (
            f"{length.epochs:.2g} epochs leave most of the training set unread: "
            f"train_model.steps = {steps:,} are {FEWEST_EPOCHS} epochs"
        )
    if length.epochs > MOST_EPOCHS:
        steps = max(1, math.floor(MOST_EPOCHS * length.tokens_per_epoch * steps_per_token))
        return (
            f"after {length.epochs:,.1f} epochs a model may know its training set by heart: "
            f"train_model.steps = {steps:,} are {MOST_EPOCHS} epochs; train_model.keep = best keeps the best weights"
        )
    return None


# Detects a loss that diverges, and describes the conversations on which it did.

_HISTORY = 64  # steps that a loss is compared with
_MIN_HISTORY = 16  # steps; before, a loss is compared with the first
_MAX_DEVIATIONS = 8.0  # median deviations over the median; ordinary steps, of 1,000 tokens too, stayed below 5.4
_MIN_RISE = 1.0  # nats over the median, at least
_PATIENCE = 10  # steps that a spike may last: most are gone after one hard batch
_NAMED, _QUOTED, _WORDS = 20, 3, 48  # conversations, those quoted, and the characters quoted of each


class LossWatch:
    """Stops a run whose loss is not finite, or rose suddenly and stays high."""

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=_HISTORY)
        self.spike: list[tuple[int, float, str]] = []  # steps, losses and conversations since it began

    def check(self, step: int, loss: float, conversations: Callable[[], str]) -> None:
        """Record a step's loss; raises ValueError if training diverges. `conversations` describes those of the step."""
        if not math.isfinite(loss):
            raise ValueError(_advice(f"step {step}: the loss is {loss}", conversations()))
        if loss <= self.limit():
            self.losses.append(loss)
            self.spike = []
            return
        self.spike.append((step, loss, "" if self.spike else conversations()))
        if len(self.spike) > _PATIENCE:
            first, height, read = self.spike[0]
            change = f"rose from {median(self.losses):.2f} to {height:.2f} and is {loss:.2f} {_PATIENCE} steps later"
            raise ValueError(_advice(f"step {first}: the loss {change}", read))

    def limit(self) -> float:
        """The loss above which a step is a spike."""
        if len(self.losses) < _MIN_HISTORY:
            return self.losses[0] + _MIN_RISE if self.losses else math.inf
        middle = median(self.losses)
        spread = median(abs(loss - middle) for loss in self.losses)
        return middle + max(_MIN_RISE, _MAX_DEVIATIONS * spread)

    def state_dict(self) -> dict[str, Any]:
        """The state that `load_state_dict` restores."""
        return {"losses": list(self.losses), "spike": self.spike}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses.extend(state["losses"])
        self.spike = state["spike"]


def _advice(problem: str, conversations: str) -> str:
    return f"{problem}: lower train_model.learning_rate, or look at the conversations of the step: {conversations}"


def describe_conversations(dataset: PackedDataset, rows: Sequence[Row], vocabulary: Vocabulary) -> str:
    """The line numbers of the rows' conversations, longest first; of the first few, also their first words."""
    members = np.concatenate([row.conversations for row in rows])
    members = members[np.argsort(-dataset.spans.lengths[members], kind="stable")]
    numbers = np.searchsorted(dataset.split.offsets, dataset.spans.starts[members], side="right") - 1
    names = [f"{i + 1} {_first_words(dataset, i, vocabulary)!r}" for i in numbers[:_QUOTED]]
    names += [f"{i + 1}" for i in numbers[_QUOTED:_NAMED]]
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return f"lines {', '.join(names)}{more} of train.jsonl"


def _first_words(dataset: PackedDataset, number: int, vocabulary: Vocabulary) -> str:
    begin, end = dataset.split.offsets[number : number + 2]
    ids = dataset.split.ids[begin : min(end, begin + _WORDS)]
    text = b"".join(vocabulary.tokens[i] for i in ids if vocabulary.kinds[i] in TEXT_KINDS)
    return " ".join(text.decode(errors="replace").split())[:_WORDS]


# What a training run shows while it goes on: a bar on a terminal, elsewhere a line now and then.

_FIRST_LINE = 5  # seconds
_ESTIMATE_STEPS = 5  # steps by which the duration is estimated
_WORTH_ESTIMATING = 60  # seconds


class Display:
    """The progress of the main process, and once an estimate of the duration."""

    def __init__(
        self,
        trainer: Trainer,
        phases: Sequence[PhaseLength],
        log: Callable[[str], None],
        clock: Clock = time.monotonic,
    ) -> None:
        self.trainer, self.phases, self.log, self.clock = trainer, phases, log, clock
        self.tokens, self.operations = 0, 0
        self.bar = None
        if trainer.group.is_main_process and on_terminal():
            self.bar = progress_bar(trainer.steps, "train", unit=" steps")

    def __enter__(self) -> "Display":
        if self.bar is not None:
            self.bar.update(self.trainer.completed_steps)
        self.start, self.first = self.clock(), self.trainer.completed_steps
        self.pace = Pace(self.phases, self.trainer.completed_steps, self.clock)
        self.lines, self.estimated = LineSchedule(_FIRST_LINE, self.clock), False
        self.recent, self.recent_tokens, self.recent_start = LossTotals(), 0, self.start  # since the last line
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()
        if self.trainer.group.is_main_process and self.trainer.completed_steps == self.trainer.steps:
            self._log_time()

    def update(self, rows: int, row_length: int, of_step: LossTotals) -> None:
        """Show that a step is complete, of so many rows of so many tokens."""
        if not self.trainer.group.is_main_process:
            return
        self.tokens += rows * row_length
        self.operations += rows * row_length * flops_per_token(self.trainer.model.config, row_length)
        self.recent, self.recent_tokens = self.recent.plus(of_step), self.recent_tokens + rows * row_length
        self.pace.finish_step()
        self._estimate()
        if self.bar is not None:
            self.bar.update()
        elif self.lines.is_due() and self.trainer.completed_steps < self.trainer.steps:
            self._log_line()

    def describe(self, sums: LossTotals) -> None:
        """Show the loss since the last call, and the speed, on the bar."""
        if self.bar is not None:
            seconds = self.clock() - self.start
            share = f", MFU {self.operations / seconds / self.peak:.0%}" if self.peak else ""
            self.bar.set_postfix_str(f"{_losses(sums)}, {self.tokens / seconds:,.0f} tokens/s{share}")

    @cached_property
    def peak(self) -> float | None:
        """Peak operations a second of all processes; None if unknown."""
        group = self.trainer.group
        most = peak_flops(group.device, self.trainer.precision)
        return most and most * group.size

    def _estimate(self) -> None:
        if self.estimated or self.pace.measured < _ESTIMATE_STEPS:
            return
        self.estimated, left = True, self.pace.seconds_left or 0
        if left > _WORTH_ESTIMATING:
            self.log(f"about {duration(left)} remain, by the time that the last {_ESTIMATE_STEPS} steps took")

    def _log_time(self) -> None:
        """Log how long the steps in this process took, if that was long enough for a line."""
        seconds, steps = self.clock() - self.start, self.trainer.steps
        if seconds > _FIRST_LINE:
            speed = f"{self.tokens / seconds:,.0f} tokens/s"
            since = f"since step {self.first:,}, from which it resumed" if self.first else "since the start"
            self.log(f"step {steps:,} of {steps:,}: {duration(seconds)} {since}, {speed}")

    def _log_line(self) -> None:
        done, steps, left = self.trainer.completed_steps, self.trainer.steps, self.pace.seconds_left
        now = self.clock()
        speed = f"{self.recent_tokens / (now - self.recent_start):,.0f} tokens/s"
        remaining = f", {duration(left)} left" if left else ""
        self.log(f"step {done:,} of {steps:,}: {_losses(self.recent)}, {speed}{remaining}")
        self.recent, self.recent_tokens, self.recent_start = LossTotals(), 0, now


def _losses(sums: LossTotals) -> str:
    bits = "" if sums.bits_per_byte is None else f", {sums.bits_per_byte:.3f} bits/byte"
    return f"loss {sums.loss:.3f}{bits}"
