"""Guesses the format of rows, from some of them: a section for params.yaml, and what a person should check."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

MIN_SHARE = 0.8  # of the rows, in which a column has the expected shape
MAX_DEPTH = 4  # of keys inside each other
_WORD = re.compile(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+(?![^\W\d_A-Z])|\d+")
Values = dict[str, list[Any]]  # those under each path of keys, one row after the other


@dataclass
class Guess:
    """A section for params.yaml, but for its path, and what a person should check of it."""

    format: str = "table"
    columns: dict[str, str] = field(default_factory=dict)
    roles: dict[str, list[str]] = field(default_factory=dict)
    first: str | None = None
    turn_separator: str | None = None
    limit: int | None = None
    doubts: list[str] = field(default_factory=list)

    def section(self) -> dict[str, Any]:
        """The keys of the section that it needs."""
        roles = {speaker: names[0] if len(names) == 1 else names for speaker, names in self.roles.items()}
        found = {
            "format": self.format,
            "columns": self.columns,
            "roles": roles,
            "first": self.first,
            "turn_separator": self.turn_separator,
            "limit": self.limit,
        }
        return {key: value for key, value in found.items() if value}


class NoGuessError(ValueError):
    """Raised for rows that no format reads; the message says why, and what it would need."""


def by_path(rows: Iterable[Any]) -> Values:
    """The values under each path of keys that are not null."""
    result = defaultdict[str, list[Any]](list)
    for row in rows:
        for path, value in _paths(row):
            result[path].append(value)
    return dict(result)


def _paths(entry: Any, before: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    if not isinstance(entry, dict) or depth == MAX_DEPTH:
        return
    for key, value in entry.items():
        path = f"{before}.{key}" if before else str(key)
        if isinstance(value, dict):
            yield from _paths(value, path, depth + 1)
        elif value is not None:
            yield path, value


def frequent(values: Values, count: int, share: float = MIN_SHARE) -> Values:
    """The paths that this share of the rows have."""
    return {path: found for path, found in values.items() if len(found) >= share * count}


def are_texts(found: Sequence[Any]) -> bool:
    """Whether all values are texts, and some are not blank."""
    return all(isinstance(value, str) for value in found) and any(value.strip() for value in found)


_IDENTIFIER = re.compile(r"(?:[\w-]*[_\d-][\w-]*|\S+/\S*)")


def are_identifiers(found: Sequence[Any]) -> bool:
    """Whether most values are names of things, as `Bot_Ability` or `a7-20`, or paths, and no words of a language."""
    return sum(_IDENTIFIER.fullmatch(str(value)) is not None for value in found) > 0.8 * len(found)


def mean_length(texts: Iterable[Any]) -> float:
    """The mean number of characters."""
    lengths = [len(str(text)) for text in texts]
    return sum(lengths) / len(lengths) if lengths else 0.0


def words_of(path: str) -> list[str]:
    """The words of a path in lower case, the last one first: `data.userQuery_1` has 1, query, user, data."""
    return [word.lower() for word in _WORD.findall(path)][::-1]


def rank(path: str, names: Sequence[str]) -> float | None:
    """How well a path is named: 0 for the first of the names, more for others and for names within longer ones.

    None for a path in which there is none of them.
    """
    key = path.rpartition(".")[2].lower()
    if key in names:
        return float(names.index(key))
    found = [names.index(word) + len(names) * (1 + at) for at, word in enumerate(words_of(path)) if word in names]
    return float(min(found)) if found else None


def best_named(paths: Iterable[str], names: Sequence[str]) -> list[str]:
    """The paths that have one of the names, the best one first."""
    ranked = [(order, path) for path in paths if (order := rank(path, names)) is not None]
    return [path for _, path in sorted(ranked, key=lambda item: item[0])]
