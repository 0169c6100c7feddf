"""Progress bars on stderr, shown only on a terminal, and log lines that do not break them."""

import sys
from collections.abc import Iterable
from typing import Any, TypeVar

from tqdm import tqdm

T = TypeVar("T")


def progress(items: Iterable[T], description: str, *, total: int | None = None, unit: str = "it") -> "tqdm[T]":
    """`items` with a progress bar that counts them; it has tqdm's `update` and `set_postfix_str`."""
    return tqdm(items, desc=description, total=total, unit=unit, **_quiet())


def progress_bar(total: int, description: str, *, unit: str = "it", scale: bool = False) -> "tqdm[Any]":
    """A progress bar that `update` advances."""
    return tqdm(desc=description, total=total, unit=unit, unit_scale=scale, **_quiet())


def log(stage: str, line: str) -> None:
    """Log a line of a stage to stderr, above its progress bar."""
    tqdm.write(f"{stage}: {line}", file=sys.stderr)


def _quiet() -> dict[str, Any]:
    return {"disable": None, "leave": False, "dynamic_ncols": True, "mininterval": 0.2}  # None: off without a terminal
