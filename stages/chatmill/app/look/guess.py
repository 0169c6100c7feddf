"""What a guess is, and by what it is made: the values of columns, their names, and the names of speakers."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from chatmill.datasets.formats.mapping import USUAL_NAMES

MIN_SHARE = 0.8  # of the rows, in which a column has the expected shape
_MAX_DEPTH = 4  # of keys inside each other
Values = dict[str, list[Any]]  # those under each path of keys, one row after the other


@dataclass
class Guess:
    """A section for params.yaml, but for its path, and what a person should check of it."""

    format: str = "table"
    columns: dict[str, str] = field(default_factory=dict)
    roles: dict[str, list[str]] = field(default_factory=dict)
    first: str | None = None
    limit: int | None = None
    doubts: list[str] = field(default_factory=list)
    names: Counter[str] = field(default_factory=Counter)  # of speakers

    def section(self) -> dict[str, Any]:
        found = {key: value for key, value in vars(self).items() if value and key not in ("doubts", "names")}
        if self.roles:
            found["roles"] = {role: names[0] if len(names) == 1 else names for role, names in self.roles.items()}
        return found


class NoGuessError(ValueError):
    """Raised for what no format reads; the message says why, and what it would need."""


# The values of columns: which are there, and what they look like.


def by_path(rows: Iterable[Any]) -> Values:
    """The values under each path of keys that are not null; a row that is no object is under `.`."""
    result = defaultdict[str, list[Any]](list)

    def add(path: str, value: Any, depth: int) -> None:
        if isinstance(value, dict) and depth < _MAX_DEPTH:
            for key, inner in value.items():
                add(f"{path}.{key}" if path else str(key), inner, depth + 1)
        elif value is not None and not isinstance(value, dict):
            result[path or "."].append(value)

    for row in rows:
        add("", row, 0)
    return dict(result)


def frequent(values: Values, count: int, share: float = MIN_SHARE) -> Values:
    """The paths that this share of the rows have."""
    return {path: found for path, found in values.items() if len(found) >= share * count}


def are_texts(found: Sequence[Any]) -> bool:
    """Whether all values are texts, and some are not blank."""
    return all(isinstance(value, str) for value in found) and any(value.strip() for value in found)


def are_lists(found: Sequence[Any]) -> bool:
    return all(isinstance(value, list) for value in found)


def items_of(found: Sequence[Any]) -> list[Any]:
    """What is in the lists among the values."""
    return [item for value in found if isinstance(value, list) for item in value]


_NAME = re.compile(r"\S*[\d_@/]\S*")  # of a thing, as `Bot_Ability` or `a7@b.org`
_MAX_LABELS = 20  # different texts of a column of labels
_MAX_LABEL = 60  # characters of a label, on average


def text_columns(values: Values) -> list[str]:
    """The columns of texts that are neither dates, numbers or names of things, nor a few labels."""
    return [path for path, found in values.items() if are_texts(found) and not _are_names(found)]


def _are_names(found: Sequence[str]) -> bool:
    are_digits = (sum(map(str.isdigit, text)) > 0.3 * sum(map(str.isalnum, text)) for text in found)
    names = [text for text, is_number in zip(found, are_digits, strict=True) if is_number or _NAME.fullmatch(text)]
    few = len(found) >= 3 and len({*found}) <= min(_MAX_LABELS, len(found) / 3)
    return len(names) > 0.8 * len(found) or (few and mean_length(found) < _MAX_LABEL)


def mean_length(found: Sequence[Any]) -> float:
    return sum(len(str(value)) for value in found) / max(1, len(found))


# The names of columns.

_WORD = re.compile(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+(?![^\W\d_A-Z])|\d+")


def words_of(path: str) -> list[str]:
    """The words of a path in lower case, the last one first: `data.userQuery_1` has 1, query, user, data."""
    return [word.lower() for word in _WORD.findall(path)][::-1]


def is_named(path: str, names: Sequence[str]) -> bool:
    """Whether the last key of a path is one of the names."""
    return path.rpartition(".")[2].lower() in names


def best_named(paths: Iterable[str], names: Sequence[str]) -> list[str]:
    """The paths that have one of the names: first those whose last key it is, then those of which a word is."""
    ranked = []
    for path in paths:
        words = [path.rpartition(".")[2].lower(), *words_of(path)]
        if found := [(at > 0, at, names.index(word)) for at, word in enumerate(words) if word in names]:
            ranked.append((min(found), path))
    return [path for _, path in sorted(ranked, key=lambda item: item[0])]


# The names of speakers: of the user, of the assistant, of others.

MAX_NAMES = 12  # in all rows; more are names of persons, or numbers
_USUAL = {name: speaker for speaker, names in USUAL_NAMES.items() for name in names}
_USERS = "customer client caller visitor patient student learner seeker asker questioner question guest member"
_ASSISTANTS = (
    "agent support operator advisor doctor therapist counselor teacher tutor helper ai answer chatgpt bing bard claude "
    "llm representative staff expert clerk nurse robot"
)
_SPEAKERS = dict.fromkeys(_USERS.split(), "user") | dict.fromkeys(_ASSISTANTS.split(), "assistant") | _USUAL


def speaker_of(name: str) -> str | None:
    """Whose a name is that is usual or likely; None for others."""
    return _SPEAKERS.get(name.strip().lower())


def name_speakers(guess: Guess, orders: Sequence[Sequence[str]]) -> None:
    """Say in a guess whose the names are that are not the usual ones, or who begins where each conversation has others.

    `orders` are the speakers of the messages, conversation by conversation.
    """
    guess.names = Counter(name for names in orders for name in names)
    firsts = Counter(names[0] for names in orders if names)
    known = {name: speaker for name in guess.names if (speaker := speaker_of(name)) is not None}
    for name, speaker in known.items():
        if name.lower() not in _USUAL:
            guess.roles.setdefault(speaker, []).append(name)
            guess.doubts.append(f"roles: by its name, {name!r} is taken as {speaker}")
    there = {*known.values()}
    unknown = [name for name in guess.names if name not in known]
    if len(unknown) > MAX_NAMES or (len(unknown) > 2 and not there & {"user", "assistant"}):
        guess.first = "user"
        guess.doubts.append(f"first: names differ, such as {unknown[0]!r}: who begins is taken to be the user")
        return
    unknown.sort(key=lambda name: (-firsts[name], -guess.names[name]))
    if "user" in there:  # to whom a system may reply
        unknown = [name for name in known if known[name] == "system" and 2 * firsts[name] < len(orders)] + unknown
    for speaker, why in (("user", "begins most conversations"), ("assistant", "is the other one")):
        if speaker not in there and unknown:
            guess.roles[speaker] = [unknown.pop(0)]
            guess.doubts.append(f"roles: {guess.roles[speaker][0]!r} {why}, and is taken to be the {speaker}")
    if unknown := [name for name in unknown if name not in known]:
        names = ", ".join(f"{name!r} ({guess.names[name]:,})" for name in unknown)
        guess.doubts.append(f"roles: say whose these are, or list them under ignore: {names}")
