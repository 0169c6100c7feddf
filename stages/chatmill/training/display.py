"""The progress bar of a training run, with its loss and its speed."""

import time
from functools import cached_property

from chatmill.pipeline.progress import progress_bar
from chatmill.training.estimate import flops_per_token, peak_flops
from chatmill.training.trainer import LossTotals, Trainer


class Display:
    """The progress bar of the main process; a step has `rows` rows of `row_length` tokens."""

    def __init__(self, trainer: Trainer, rows: int, row_length: int) -> None:
        self.trainer, self.rows, self.row_length = trainer, rows, row_length
        self.bar = progress_bar(trainer.steps, "train", unit=" steps") if trainer.group.is_main_process else None

    def __enter__(self) -> "Display":
        if self.bar is not None:
            self.bar.update(self.trainer.completed_steps)
        self.first, self.start = self.trainer.completed_steps, time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def update(self) -> None:
        """Advance the bar by one step."""
        if self.bar is not None:
            self.bar.update()

    def describe(self, sums: LossTotals) -> None:
        """Show the loss since the last call, and the speed."""
        if self.bar is not None and not self.bar.disable:
            tokens = (self.trainer.completed_steps - self.first) * self.rows * self.row_length
            speed = tokens / (time.monotonic() - self.start)
            bits = "" if sums.bits_per_byte is None else f"{sums.bits_per_byte:.3f} bits/byte, "
            share = f", MFU {self.flops * speed / self.peak:.0%}" if self.peak else ""
            self.bar.set_postfix_str(f"loss {sums.loss:.3f}, {bits}{speed:,.0f} tokens/s{share}")

    @cached_property
    def flops(self) -> int:
        """Operations per token."""
        return flops_per_token(self.trainer.model.config, self.row_length)

    @cached_property
    def peak(self) -> float | None:
        """Peak operations a second of all processes; None if unknown."""
        group = self.trainer.group
        most = peak_flops(group.device, self.trainer.precision)
        return most and most * group.size
