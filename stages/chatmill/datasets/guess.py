"""Guesses where the conversations of a table are, from some of its rows: the mapping of the format `table`."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from chatmill.datasets.formats.mapping import USUAL_NAMES

MAX_DEPTH = 4  # of keys inside each other
MAX_ROLES = 12  # different names of speakers
MIN_SHARE = 0.8  # of the rows, in which a column has the expected shape
_QUESTIONS = ("prompt", "question", "instruction", "query", "q", "input", "user", "human", "problem", "context")
_ANSWERS = ("completion", "answer", "response", "output", "a", "reply", "chosen", "assistant", "target", "solution")
_MARK = re.compile(r"(?m)^[ \t]*([A-Za-z][\w ]{0,24}?)[ \t]*:")


@dataclass
class Guess:
    """A section for params.yaml, but for its path, and what a person should look at."""

    columns: dict[str, str] = field(default_factory=dict)
    roles: dict[str, list[str]] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)


def guess_mapping(rows: Sequence[Any]) -> Guess:
    """The likeliest mapping of rows that have been read. Without columns, `doubts` says what is missing."""
    values = _by_path(rows)
    often = {path: found for path, found in values.items() if len(found) >= MIN_SHARE * len(rows)}
    for find in (_message_lists, _text_lists, _marked_texts, _pairs):
        if (guess := find(often)) is not None:
            return guess
    found = ", ".join(sorted(values)) or "none"
    return Guess(doubts=[f"no column holds a conversation, or a question and its answer (columns: {found})"])


def _by_path(rows: Iterable[Any]) -> dict[str, list[Any]]:
    """The values under each path of keys, those of one row after the other."""
    result = defaultdict[str, list[Any]](list)
    for row in rows:
        for path, value in _paths(row):
            result[path].append(value)
    return dict(result)


def _paths(entry: Any, before: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    if isinstance(entry, dict) and depth < MAX_DEPTH:
        for key, value in entry.items():
            path = f"{before}.{key}" if before else str(key)
            if isinstance(value, dict):
                yield from _paths(value, path, depth + 1)
            elif value is not None:
                yield path, value


def _message_lists(values: dict[str, list[Any]]) -> Guess | None:
    best: tuple[float, Guess] | None = None
    for path, found in values.items():
        lists = [value for value in found if isinstance(value, list) and value]
        messages = [message for value in lists for message in value if isinstance(message, dict)]
        if len(lists) < MIN_SHARE * len(found) or not messages:
            continue
        fields = {name: texts for name, texts in _by_path(messages).items() if _are_texts(texts, len(messages))}
        names = {name for name, texts in fields.items() if 2 <= len({*map(str.lower, texts)}) <= MAX_ROLES}
        roles = sorted(names, key=lambda name: (-_known(fields[name]), mean(map(len, fields[name]))))
        contents = sorted(fields.keys() - roles[:1], key=lambda name: -mean(map(len, fields[name])))
        if not roles or not contents:
            continue
        guess = Guess({"messages": path, "role": roles[0], "content": contents[0]})
        order = [
            [role for entry in value if isinstance(entry, dict) for key, role in _paths(entry) if key == roles[0]]
            for value in lists
        ]
        _name_roles(guess, order)
        size = sum(map(len, fields[contents[0]]))
        if best is None or size > best[0]:
            best = size, guess
    return best[1] if best else None


def _text_lists(values: dict[str, list[Any]]) -> Guess | None:
    for path, found in values.items():
        lists = [value for value in found if isinstance(value, list) and all(isinstance(text, str) for text in value)]
        if len(lists) >= MIN_SHARE * len(found) and mean(map(len, lists)) >= 2:
            return Guess({"messages": path}, doubts=[f"{path}: the first text is taken to be the user's"])
    return None


def _marked_texts(values: dict[str, list[Any]]) -> Guess | None:
    for path, found in values.items():
        marks = [_MARK.findall(text) if isinstance(text, str) else [] for text in found]
        common = Counter(name for names in marks for name in {*names})
        speakers = [name for name, count in common.items() if count >= MIN_SHARE * len(found)]
        if len(speakers) >= 2:
            guess = Guess({"messages": path})
            _name_roles(guess, [[name for name in names if name in speakers] for names in marks])
            return guess
    return None


def _pairs(values: dict[str, list[Any]]) -> Guess | None:
    texts = [path for path, found in values.items() if _are_texts(found, len(found)) or _are_messages(found)]
    prompt, completion = (_named(texts, names) for names in (_QUESTIONS, _ANSWERS))
    doubts = []
    if prompt is None or completion is None:
        others = [path for path in texts if path not in (prompt, completion)]
        if len(others) < (prompt is None) + (completion is None) or len(texts) != 2:
            return None
        prompt, completion = prompt or others.pop(0), completion or others.pop(0)
        doubts = [f"{prompt} is taken to be the question, as it stands before {completion}"]
    guess = Guess({"prompt": prompt, "completion": completion}, doubts=doubts)
    if prompt.lower() != "input" and (more := _named(texts, ("input", "context"))) not in (None, prompt, completion):
        guess.columns["input"] = str(more)
    return guess


def _name_roles(guess: Guess, order: Sequence[Sequence[str]]) -> None:
    """Say whose the names are that are not usual: he who mostly begins is the user, another one the assistant."""
    usual = {name: speaker for speaker, names in USUAL_NAMES.items() for name in names}
    unknown = {name for names in order for name in names if name.lower() not in usual}
    if not unknown:
        return
    known = {usual[name.lower()] for names in order for name in names if name.lower() in usual}
    first = Counter(next(iter(names), "") for names in order)
    left = sorted(unknown, key=lambda name: -first[name])
    for speaker in ("user", "assistant"):
        if speaker not in known and left:
            guess.roles[speaker] = [left.pop(0)]
    guess.doubts.append("roles: he who begins most conversations is taken to be the user")
    if left:
        guess.doubts.append(f"roles: say whose these are, or ignore them: {', '.join(left)}")


def _known(texts: Sequence[str]) -> int:
    """How many different texts are usual names of speakers."""
    usual = {name for names in USUAL_NAMES.values() for name in names}
    return len({*map(str.lower, texts)} & usual)


def _are_texts(found: Sequence[Any], expected: int) -> bool:
    return len(found) >= MIN_SHARE * expected and all(isinstance(value, str) for value in found)


def _are_messages(found: Sequence[Any]) -> bool:
    return all(isinstance(value, list) and value and isinstance(value[0], dict) for value in found)


def _named(paths: Sequence[str], names: Sequence[str]) -> str | None:
    """The path whose last key is the earliest of the names."""
    keys = {path.rpartition(".")[2].lower(): path for path in reversed(paths)}
    return next((keys[name] for name in names if name in keys), None)
