"""Reads values from nested metrics, and formats them for the page."""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

Metrics = dict[str, Any]


def get_nested(metrics: Any, *keys: str, default: Any = None) -> Any:
    """The value under a path of keys, or `default` where a run did not measure it."""
    for key in keys:
        metrics = metrics.get(key) if isinstance(metrics, dict) else None
    return default if metrics is None else metrics


def number(value: float | None, decimals: int | None = None) -> str:
    """A number as text: with `decimals`, or else three digits, or commas if it is an integer; a dash for None."""
    if value is None:
        return "–"
    if decimals is not None:
        return f"{value:.{decimals}f}"
    if math.isfinite(value) and (abs(value) >= 100 or value == int(value)):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percent(share: float | None) -> str:
    """A share as a percentage; a dash for None."""
    return "–" if share is None else f"{100 * share:.1f} %"


def percent_range(limits: Sequence[float] | None) -> str:
    """The interval of a share as percentages; a dash for None."""
    return "–" if limits is None else f"{100 * limits[0]:.1f} to {100 * limits[1]:.1f} %"


def bits_range(limits: Sequence[float] | None, decimals: int = 3) -> str:
    """The interval of bits per byte as text; a dash for None."""
    return "–" if limits is None else " to ".join(number(limit, decimals) for limit in limits)


def in_bits(value: float | None) -> str:
    """Bits per byte as text."""
    return number(value, decimals=3)


def dotted(values: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each value as text, with its keys joined by dots."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from dotted(value, f"{name}.")
        else:
            yield valid_text(name), valid_text(value if isinstance(value, str) else json.dumps(value, default=str))


def valid_text(value: str) -> str:
    """The text with lone surrogates replaced, so that it can be written as UTF-8."""
    return value.encode("utf-8", "replace").decode()
