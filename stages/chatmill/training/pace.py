"""How long the remaining steps of a run take, by the time of those measured."""

import time
from collections.abc import Sequence

from chatmill.pipeline.progress import Clock

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
