"""What a guess is, and by what it is made: the values of columns, their names, and the names of speakers."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from chatmill.datasets.formats.mapping import USUAL_NAMES, Speaker

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
        found = {key: value for key, value in vars(self).items() if value and key != "doubts"}
        if self.roles:
            found["roles"] = {role: names[0] if len(names) == 1 else names for role, names in self.roles.items()}
        return found


class NoGuessError(ValueError):
    """Raised for what no format reads; the message says why, and what it would need."""


# The values of columns: which are there, and what they look like.


def by_path(rows: Iterable[Any]) -> Values:
    """The values under each path of keys that are not null; a row that is no object is under `.`."""
    result = defaultdict[str, list[Any]](list)
    for row in rows:
        for path, value in _paths(row if isinstance(row, dict) else {".": row}):
            result[path].append(value)
    return dict(result)


def _paths(entry: dict[Any, Any], before: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, value in entry.items():
        path = f"{before}.{key}" if before else str(key)
        if isinstance(value, dict) and depth + 1 < MAX_DEPTH:
            yield from _paths(value, path, depth + 1)
        elif value is not None and not isinstance(value, dict):
            yield path, value


def frequent(values: Values, count: int, share: float = MIN_SHARE) -> Values:
    """The paths that this share of the rows have."""
    return {path: found for path, found in values.items() if len(found) >= share * count}


def are_texts(found: Sequence[Any]) -> bool:
    """Whether all values are texts, and some are not blank."""
    return all(isinstance(value, str) for value in found) and any(value.strip() for value in found)


def are_lists(found: Sequence[Any]) -> bool:
    return all(isinstance(value, list) for value in found)


_DATE_WORDS = (  # how the words of dates begin, in some languages
    "jan ene gen feb fév fev mar mär apr abr avr may mai mag jun jui giu jul lug aug ago aoû sep set oct okt "
    "ott out nov dec déc dez dic mon tue wed thu fri sat sun am pm utc gmt t z uhr de at st nd rd th h 年 月 日 時 分"
)
_DATE = rf"(?=\D*\d)(?:[\W\d_]++|(?:{'|'.join(_DATE_WORDS.split())})[^\W\d_]{{0,8}}(?![^\W\d_]))+"
_IDENTIFIER = re.compile(rf"(?i)[\w-]*[_\d-][\w-]*|\S+/\S*|\S+@\S+|{_DATE}")


def are_identifiers(found: Sequence[Any]) -> bool:
    """Whether most values are dates, numbers, or names of things, as `Bot_Ability` or `a7-20`, and no words."""
    return sum(_IDENTIFIER.fullmatch(str(value)) is not None for value in found) > 0.8 * len(found)


_MAX_LABELS = 20  # different texts of a column of labels
_MAX_LABEL = 60  # characters of a label, on average


def are_labels(found: Sequence[Any]) -> bool:
    """Whether texts are few different ones, which are short."""
    few = len({*map(str, found)}) <= min(_MAX_LABELS, len(found) / 3)
    return len(found) >= 3 and few and mean_length(found) < _MAX_LABEL


def text_columns(values: Values, min_length: float = 0) -> list[str]:
    """The columns of texts that are neither labels nor names of things."""
    texts = [path for path, found in values.items() if are_texts(found) and not are_labels(found)]
    return [path for path in texts if not are_identifiers(values[path]) and mean_length(values[path]) >= min_length]


def mean_length(texts: Iterable[Any]) -> float:
    lengths = [len(str(text)) for text in texts]
    return sum(lengths) / len(lengths) if lengths else 0.0


# The names of columns.


def words_of(path: str) -> list[str]:
    """The words of a path in lower case, the last one first: `data.userQuery_1` has 1, query, user, data."""
    return [word.lower() for word in _WORD.findall(path)][::-1]


def rank(path: str, names: Sequence[str]) -> float | None:
    """How well a path is named: 0 for the first of the names, more for others and for names within longer ones.

    None for a path in which there is none of them.
    """
    if is_named(path, names):
        return float(names.index(_key(path)))
    found = [names.index(word) + len(names) * (1 + at) for at, word in enumerate(words_of(path)) if word in names]
    return float(min(found)) if found else None


def is_named(path: str, names: Sequence[str]) -> bool:
    """Whether the last key of a path is one of the names."""
    return _key(path) in names


def _key(path: str) -> str:
    return path.rpartition(".")[2].lower()


def best_named(paths: Iterable[str], names: Sequence[str]) -> list[str]:
    ranked = [(order, path) for path in paths if (order := rank(path, names)) is not None]
    return [path for _, path in sorted(ranked, key=lambda item: item[0])]


# The names of speakers: of the user, of the assistant, of others.

MAX_NAMES = 12  # in all rows; more are names of persons, or numbers
_USUAL = {name: speaker for speaker, names in USUAL_NAMES.items() for name in names}
_LIKELY: dict[Speaker, str] = {
    "system": "system_prompt sys instructions",
    "user": (
        "customer client caller visitor patient student learner seeker help_seeker asker questioner question buyer "
        "guest member person me usr q instruction prompt query input inquirer employee seller_lead borrower traveler"
    ),
    "assistant": (
        "agent support supporter operator advisor adviser doctor therapist counselor teacher tutor helper ai "
        "ai_assistant answer response reply a chatgpt bing bard claude llm wizard representative rep staff expert "
        "librarian asst virtual_assistant seller clerk nurse robot machine answerer output"
    ),
    "call": "tool-call function-call action tool_use",
    "output": "tool_result tool_output function_response function_result function-response tool-result",
}
_PROBABLE = {name: speaker for speaker, names in _LIKELY.items() for name in names.split()}


def speaker_of(name: str) -> str | None:
    """Whose a name is that is usual or likely; None for others."""
    return _USUAL.get(name.lower()) or _PROBABLE.get(name.strip().lower().replace(" ", "_"))


def name_speakers(guess: Guess, orders: Sequence[Sequence[str]]) -> None:
    """Say in a guess whose the names are that are not the usual ones, or who begins where each conversation has others.

    `orders` are the speakers of the messages, conversation by conversation.
    """
    roles, doubts = guess.roles, guess.doubts
    counts = Counter(name for names in orders for name in names)
    known = {name: speaker for name in counts if (speaker := speaker_of(name)) is not None}
    if len({name.lower() for name in known} & {"q", "a"}) == 1:  # which are known only together
        known = {name: speaker for name, speaker in known.items() if len(name) > 1}
    for name, speaker in known.items():
        if name.lower() not in _USUAL:
            roles.setdefault(speaker, []).append(name)
            doubts.append(f"roles: by its name, {name!r} is taken as {speaker}")

    # Who is the assistant, where the system replies to the user.
    there = {*known.values()}
    system = next((name for name, speaker in known.items() if speaker == "system"), "")
    replies = sum(system in names[1:] for names in orders)
    if system and "user" in there and "assistant" not in there and replies > 0.5 * len(orders):
        roles["assistant"] = [system]
        there.add("assistant")
        doubts.append(f"roles: {system!r} replies to the user, so it is taken to be the assistant")

    # Names that say nothing.
    unknown = [name for name in counts if name not in known]
    if len(unknown) > MAX_NAMES or (len(unknown) > 2 and not there & {"user", "assistant"}):
        more = sum(len({*names}) > 2 for names in orders)
        others = f"; {more:,} of {len(orders):,} have more than two speakers" if more else ""
        doubt = f"each conversation has its own names, such as {unknown[0]!r}: he who begins is taken to be the user"
        doubts.append(f"first: {doubt}{others}")
        guess.first = "user"
        return
    firsts = Counter(names[0] for names in orders if names)
    unknown.sort(key=lambda name: (-firsts[name], -counts[name]))
    for speaker, why in (("user", "begins most conversations"), ("assistant", "is the other one")):
        if speaker not in there and unknown:
            roles[speaker] = [unknown.pop(0)]
            doubts.append(f"roles: {roles[speaker][0]!r} {why}, and is taken to be the {speaker}")
    if unknown:
        names = ", ".join(f"{name!r} ({counts[name]:,})" for name in unknown)
        doubts.append(f"roles: say whose these are, or list them under ignore: {names}")
