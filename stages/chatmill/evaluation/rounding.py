"""How the numbers of metrics are rounded."""

from typing import Any


def rounded(value: Any, digits: int = 6) -> Any:
    """The value with so many digits after the point, in whatever dictionaries its numbers stand."""
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    return round(value, digits) if isinstance(value, float) else value
