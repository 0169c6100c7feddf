"""Metrics as they are read and written on the page."""

import math
from typing import Any

Metrics = dict[str, Any]


def get_nested(metrics: Any, *keys: str, default: Any = None) -> Any:
    """What stands under a path of keys; `default` where a run did not measure it."""
    for key in keys:
        metrics = metrics.get(key) if isinstance(metrics, dict) else None
    return default if metrics is None else metrics


def number(value: float | None, decimals: int | None = None) -> str:
    """A value for people: so many decimals, or else three digits, or whole with commas; a dash for none."""
    if value is None:
        return "–"
    if decimals is not None:
        return f"{value:.{decimals}f}"
    if math.isfinite(value) and (abs(value) >= 100 or value == int(value)):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percent(share: float | None) -> str:
    """A share as a percentage; a dash for none."""
    return "–" if share is None else f"{100 * share:.1f} %"


def in_bits(value: float | None) -> str:
    """Bits per byte as text."""
    return number(value, decimals=3)
