"""The progress bar of a training run, with its loss and its speed."""

import time
from functools import cached_property

from chatmill.pipeline.progress import progress_bar
from chatmill.training.estimate import flops_per_token, peak_flops
from chatmill.training.trainer import LossTotals, Trainer


class Display:
    """The progress bar of the main process."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.tokens, self.operations = trainer, 0, 0
        self.bar = progress_bar(trainer.steps, "train", unit=" steps") if trainer.group.is_main_process else None

    def __enter__(self) -> "Display":
        if self.bar is not None:
            self.bar.update(self.trainer.completed_steps)
        self.start = time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def update(self, rows: int, row_length: int) -> None:
        """Advance the bar by one step, of so many rows of so many tokens."""
        if self.bar is not None:
            self.tokens += rows * row_length
            self.operations += rows * row_length * flops_per_token(self.trainer.model.config, row_length)
            self.bar.update()

    def describe(self, sums: LossTotals) -> None:
        """Show the loss since the last call, and the speed."""
        if self.bar is not None and not self.bar.disable:
            seconds = time.monotonic() - self.start
            bits = "" if sums.bits_per_byte is None else f"{sums.bits_per_byte:.3f} bits/byte, "
            share = f", MFU {self.operations / seconds / self.peak:.0%}" if self.peak else ""
            self.bar.set_postfix_str(f"loss {sums.loss:.3f}, {bits}{self.tokens / seconds:,.0f} tokens/s{share}")

    @cached_property
    def peak(self) -> float | None:
        """Peak operations a second of all processes; None if unknown."""
        group = self.trainer.group
        most = peak_flops(group.device, self.trainer.precision)
        return most and most * group.size
