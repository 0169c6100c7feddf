"""Trees of messages, each of which gives one conversation: from its first message along the best ranked replies.

    {"prompt": {"role": "user", "content": "Hi", "replies": [{"role": "assistant", "content": "Hello", "rank": 0}]}}
    columns: {messages: prompt, replies: replies, rank: rank}

    {"id": "a", "parent": null, "role": "user", "content": "Hi"}
    {"id": "b", "parent": "a", "role": "assistant", "content": "Hello", "rank": 0}
    columns: {id: id, parent: parent, rank: rank}

All other replies are counted and left out.

Rows that are messages may name their conversation instead; those of several may interleave:

    {"ticket": 7, "number": 2, "role": "assistant", "content": "Hello"}
    columns: {conversation: ticket, order: number}
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

from chatmill.datasets.formats.containers import Shortened
from chatmill.datasets.formats.example import Dropped, Extent, RawRow, Reject, UnusableRowError, describe_value
from chatmill.datasets.formats.mapping import FIELDS, MESSAGES, REPLIES, Columns, content_bytes, value_at

MAX_BYTES = 1_000_000_000  # of text in the rows of a file, or a tree, that memory holds, with 1,000 for each message
_TOO_LONG = f"of over {MAX_BYTES:,} bytes of messages in memory: divide the file"


# Messages with their replies in them.


def best_path(root: Any, columns: Columns) -> tuple[list[Any], list[Dropped]]:
    """The messages from the first one of a tree along the best replies, and the others, which are left out.

    Raises UnusableRowError where the first one is deleted, or no message, or replies are no list of messages.
    """
    if not isinstance(root, dict):
        raise UnusableRowError("missing_field", f"{columns.messages}: expected a message, got {describe_value(root)}")
    if _is_deleted(root, columns):
        raise UnusableRowError("deleted", "the opening message is deleted")
    column, path = str(columns.replies), [root]
    while replies := [reply for reply in _replies(path[-1], column) if not _is_deleted(reply, columns)]:
        path.append(min(replies, key=lambda reply: _rank(reply, columns)))
    taken = {id(message) for message in path}
    others: dict[str, list[Any]] = {}
    for message in messages_of(root, column):
        if id(message) not in taken:
            others.setdefault("deleted" if _is_deleted(message, columns) else "other_reply", []).append(message)
        _replies(message, column)  # raises if they are no messages
    return path, [
        Dropped(reason, _extent(messages, columns), f"{len(messages)} beside the {len(path)} that are read")
        for reason, messages in others.items()
    ]


def messages_of(root: Any, column: str) -> list[Any]:
    """All messages of a tree, the first one first; `column` is that of replies."""
    found = [root]
    for message in found:  # which grows
        replies = value_at(message, column, None)
        found += replies if isinstance(replies, list) else []
    return found


def _replies(message: Any, column: str) -> list[Any]:
    """The replies to a message. Raises UnusableRowError unless they are a list of messages, or missing."""
    replies = value_at(message, column, None) or []
    wrong = [one for one in replies if not isinstance(one, dict)] if isinstance(replies, list) else [replies]
    if wrong:
        raise UnusableRowError("missing_field", f"{column}: expected messages, got {describe_value(wrong[0])}")
    return list(replies)


def _rank(reply: Any, columns: Columns) -> float:
    value: Any = None if columns.rank is None else value_at(reply, columns.rank, None)
    try:
        rank = float(value)
    except (TypeError, ValueError, OverflowError):
        return math.inf
    return math.inf if math.isnan(rank) else rank


def _is_deleted(message: Any, columns: Columns) -> bool:
    value = None if columns.deleted is None else value_at(message, columns.deleted, None)
    return bool(value) and not (isinstance(value, str) and value.lower() in ("false", "0"))


def _extent(messages: Sequence[Any], columns: Columns) -> Extent:
    return Extent(len(messages), sum(content_bytes(value_at(one, columns.content, None)) for one in messages))


# Rows that are messages.


class _Row(NamedTuple):
    place: str
    entry: dict[str, Any]
    id: str  # of the message, or of its conversation
    parent: str | None  # None: it is the first one of a tree
    tree: Any


def grow(rows: Iterable[RawRow | Reject], columns: Columns) -> Iterator[RawRow | Reject]:
    """Join rows that are messages into trees or conversations (`TableMapping.nested`); other rows stay as they are.

    A tree is its first message, with all replies nested. Memory holds all rows, or with `columns.tree` those of one
    tree. A message whose parents lead to no first message is a reject.
    """
    if not columns.is_of_one_message:
        yield from rows
        return
    join = _joined if columns.conversation is None else _in_order
    keys = {key for name in names_of(columns) for key in (name, name.partition(".")[0])}
    own, tree, size = columns.conversation or columns.id, list[_Row](), 0
    for row in rows:
        if isinstance(row, Reject):
            yield row
            continue
        place, entry = row
        extent, name = _extent([entry], columns), id_of(entry, own) if isinstance(entry, dict) else None
        if name is None:
            yield Reject(place, "missing_field", f"no {own!r} in {describe_value(entry)}", *extent)
            continue
        of_tree = None if columns.tree is None else value_at(entry, columns.tree, None)
        if tree and of_tree != tree[0].tree:
            yield from join(tree, columns)
            tree, size = [], 0
        size += 1000 + extent.bytes
        if size > MAX_BYTES:
            more = "" if columns.tree or columns.conversation else ", or name columns.tree"
            yield Reject(place, "too_long", _TOO_LONG + more, *extent)
            continue
        used = type(entry)({key: value for key, value in entry.items() if key in keys})
        tree.append(_Row(place, used, name, id_of(entry, columns.parent), of_tree))
    yield from join(tree, columns)


def names_of(columns: Columns) -> list[str]:
    """The columns that are read of a row, or of one which is a message."""
    named = columns.model_dump(exclude_none=True) if columns.is_of_one_message else columns.named()
    return [*named.values(), *(FIELDS if columns.is_of_one_message else ())]


def id_of(entry: Any, column: str | None) -> str | None:
    """The id in a column, a text or a number, of which 7.0 equals 7; None where there is none."""
    value = None if column is None else value_at(entry, column, None)
    if value is None or value == "" or value != value:
        return None
    text = describe_value(value) if isinstance(value, list | dict) else str(value)
    return text[:-2] if text.endswith(".0") and text[:-2].isdigit() else text


def _in_order(rows: list[_Row], columns: Columns) -> Iterator[RawRow | Reject]:
    """The first row of each conversation, with the messages of all."""
    found = defaultdict[str, list[_Row]](list)
    for row in rows:
        found[row.id].append(row)
    for messages in found.values():
        place, entries = messages[0].place, [message.entry for message in messages]
        try:
            if columns.order is not None:
                entries.sort(key=lambda entry: order_of(entry, str(columns.order)))
            whole = Shortened if any(isinstance(entry, Shortened) for entry in entries) else dict
            yield place, whole(entries[0], **{MESSAGES: entries})
        except UnusableRowError as error:
            error.extent = _extent(entries, columns)
            yield error.reject(place)


def order_of(entry: Any, column: str) -> float:
    """The place of a message in its conversation: a number, or the time of a date. Raises UnusableRowError."""
    value = value_at(entry, column, None)
    for parse in (int, float, _seconds):
        with suppress(ValueError):
            if (found := parse(str(value))) == found:
                return found
    expected = "expected a number, or a date such as 2024-05-31 09:15"
    raise UnusableRowError("bad_order", f"{column}: {expected}, got {value!r:.40}")


def _seconds(date: str) -> float:
    time = datetime.fromisoformat(date)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _joined(rows: list[_Row], columns: Columns) -> Iterator[RawRow | Reject]:
    """The first messages of trees with all replies nested, after a reject for each message that is in none."""
    by_id: dict[str, _Row] = {}
    for row in rows:
        by_id.setdefault(row.id, row)
    for row in by_id.values():
        if row.parent in by_id:
            by_id[row.parent].entry.setdefault(REPLIES, []).append(row.entry)
    roots = [row for row in by_id.values() if row.parent is None]
    reached = {id(message) for root in roots for message in messages_of(root.entry, REPLIES)}
    for row in rows:
        if by_id[row.id] is not row:
            yield _reject(row, "same_id", f"the id {row.id!r:.60} is that of an earlier message", columns)
        elif id(row.entry) not in reached:
            why = "leads to no first message" if row.parent in by_id else "is not in the tree"
            yield _reject(row, "orphan", f"the parent {row.parent!r:.60} {why}", columns)
    yield from ((root.place, root.entry) for root in roots)


def _reject(row: _Row, reason: str, detail: str, columns: Columns) -> Reject:
    return Reject(row.place, reason, detail, *_extent([row.entry], columns))
