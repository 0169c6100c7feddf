"""Rounds the numbers of metrics."""

from typing import Any


def rounded(value: Any, digits: int = 6) -> Any:
    """A number, or all numbers in nested dictionaries and tuples, rounded to `digits` decimals."""
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(rounded(item, digits) for item in value)
    return round(value, digits) if isinstance(value, float) else value
