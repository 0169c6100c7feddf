"""Guesses of rows that hold trees of messages, or that are messages of trees."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from chatmill.app.look.guess import MIN_SHARE, Guess, best_named, by_path
from chatmill.app.look.message_lists import message_list
from chatmill.datasets.formats.mapping import value_at
from chatmill.datasets.formats.trees import id_of, messages_of

_PARENTS = ("parent", "reply", "replied", "previous", "prev")
_DELETED = ("deleted", "is_deleted", "removed", "is_removed")
_FLAGS = ("true", "false", "0", "1", "")


def tree_guess(rows: Sequence[Any]) -> Guess | None:
    """The mapping of trees of messages, which the rows hold, or of which each row is a message."""
    if not all(isinstance(row, dict) for row in rows):
        return None
    return _nested(rows) or _flat(rows)


def _nested(rows: Sequence[Any]) -> Guess | None:
    """The mapping of messages with replies that have replies."""
    for path, lists in by_path(rows).items():
        before, _, key = path.rpartition(".")
        replies = [reply for value in lists if isinstance(value, list) for reply in value if isinstance(reply, dict)]
        if any(isinstance(reply.get(key), list) and reply[key] for reply in replies):
            found = [messages_of(value_at(row, before or ".", None), key) for row in rows]
            return _guess({"messages": before or ".", "replies": key}, found)
    return None


def _flat(rows: Sequence[Any]) -> Guess | None:
    """The mapping of rows of which most say by its id to which one they reply."""
    paths = list(by_path(rows))
    ids = {path: [id_of(row, path) for row in rows] for path in paths}
    for name, own in ids.items():
        known = {*own} - {None}
        if len(known) < len(rows):
            continue
        for path in best_named(paths, _PARENTS):
            named = [parent for parent in ids[path] if parent is not None]
            if path != name and named and sum(parent in known for parent in named) > MIN_SHARE * len(named):
                threads = _threads(rows, dict(zip(own, ids[path], strict=True)), own)
                trees = [tree for tree in paths if _is_tree(tree, rows, threads)]
                return _guess({"id": name, "parent": path} | ({"tree": trees[0]} if trees else {}), threads)
    return None


def _threads(rows: Sequence[Any], parents: dict[str | None, str | None], own: Sequence[str | None]) -> list[list[Any]]:
    """The rows by the first message to which their parents lead."""
    threads = defaultdict[str | None, list[Any]](list)
    for name, row in zip(own, rows, strict=True):
        passed = {name}
        while (parent := parents[name]) in parents and parent not in passed:
            name = parent
            passed.add(name)
        threads[name].append(row)
    return list(threads.values())


def _is_tree(path: str, rows: Sequence[Any], threads: Sequence[Sequence[Any]]) -> bool:
    """Whether a column has one value for each of several threads, whose rows follow each other."""
    values = [str(value_at(row, path, None)) for row in rows]
    runs = 1 + sum(one != other for one, other in pairwise(values))
    each = [{str(value_at(row, path, None)) for row in thread} for thread in threads]
    return len(threads) > 1 and all(len(found) == 1 for found in each) and runs == len({*values}) == len(threads)


def _guess(columns: dict[str, str], threads: Sequence[list[Any]]) -> Guess | None:
    guess = message_list(".", threads)
    if guess is None:
        return None
    fields = by_path(message for thread in threads for message in thread)
    own = {name: column for name, column in guess.columns.items() if name != "messages" and name != column}
    guess.columns = columns | own
    ranks = [path for path in best_named(fields, ("rank",)) if not any(isinstance(v, list) for v in fields[path])]
    if ranks:
        guess.columns["rank"] = ranks[0]
    deleted = [path for path in best_named(fields, _DELETED) if {str(v).lower() for v in fields[path]} <= {*_FLAGS}]
    if deleted:
        guess.columns["deleted"] = deleted[0]
    best = "best ranked" if ranks else "first"
    guess.doubts.append(f"trees: each gives one conversation, along the {best} replies; all others are left out")
    return guess
