"""Progress on stderr, as bars on a terminal and as a few lines elsewhere, and log lines that do not break the bars."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import partial
from typing import Generic, TypeVar

from tqdm import tqdm

T = TypeVar("T")
Clock = Callable[[], float]

_FIRST_LINE = 10  # seconds; shorter work is silent
_LONGEST_PAUSE = 60  # seconds between lines


class ProgressLines(Generic[T]):
    """Counts `items` as tqdm does, and logs `12,000 of 30,000`: after 10, 20 and 40 seconds, then every minute."""

    def __init__(
        self,
        items: Iterable[T],
        description: str,
        *,
        total: int | None = None,
        unit: str = "it",
        done: int = 0,
        clock: Clock = time.monotonic,
    ) -> None:
        self._items, self._description, self._postfix = items, description, ""
        self._total = total
        self._unit = unit if unit != "it" else ""
        self._count = float(done)
        self._clock, self._start = clock, clock()
        self._due = float(_FIRST_LINE)  # seconds from the start to the next line
        # Seconds and count after the first item, in which a model may compile.
        self._first: tuple[float, float] | None = None

    def __iter__(self) -> Iterator[T]:
        for item in self._items:
            yield item
            self.update()

    def update(self, count: float = 1) -> None:
        self._count += count
        elapsed = self._clock() - self._start
        self._first = self._first or (elapsed, self._count)
        if elapsed >= self._due:
            tqdm.write(self._line(elapsed), file=sys.stderr)
            while self._due <= elapsed:
                self._due += min(self._due, _LONGEST_PAUSE)

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        """Set what the lines say beside the count; it is shown with the next line."""
        self._postfix = text

    def close(self) -> None:
        """Do nothing: no line is incomplete."""

    def _line(self, elapsed: float) -> str:
        count = f"{self._count:,.0f}"
        if self._total:
            seconds, before = self._first or (0.0, self._count)
            since, counted = elapsed - seconds, self._count - before
            left = f"{duration((self._total - self._count) * since / counted)} left" if counted else ""
            parts = [f"{count} of {self._total:,.0f}", self._postfix, left]
        else:
            parts = [f"{count}{self._unit}", self._postfix]
        return f"{self._description}: {', '.join(filter(None, parts))}"


def progress(
    items: Iterable[T], description: str, *, total: int | None = None, unit: str = "it", done: int = 0
) -> "tqdm[T] | ProgressLines[T]":
    """Show a progress bar, or log lines where there is no terminal, which count items from `done` on.

    They count `items` as these are consumed; without items, `update` counts.
    """
    total = len(items) if total is None and isinstance(items, Sized) else total
    if not sys.stderr.isatty():
        return ProgressLines(items, description, total=total, unit=unit, done=done)
    bar = partial(tqdm, leave=False, dynamic_ncols=True, mininterval=0.2)
    return bar(items, desc=description, total=total, unit=unit, initial=done)


def log(stage: str, line: str) -> None:
    """Log a line of a stage to stderr, above its progress bar."""
    tqdm.write(f"{stage}: {line}", file=sys.stderr)


def duration(seconds: float) -> str:
    """A duration in words, with two digits or more: `45 s`, `21 minutes`, `3.5 hours`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"
