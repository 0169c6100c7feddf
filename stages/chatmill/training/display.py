"""What a training run shows while it goes on: a bar on a terminal, elsewhere a line now and then."""

import time
from collections.abc import Callable, Sequence
from functools import cached_property

from chatmill.pipeline.progress import Clock, LineSchedule, duration, on_terminal, progress_bar
from chatmill.training.estimate import flops_per_token, peak_flops
from chatmill.training.pace import Pace, PhaseLength
from chatmill.training.trainer import LossTotals, Trainer

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
        """Log once how long the run takes, if that is long."""
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
