"""OpenAssistant's message trees, in JSON lines: flat messages in the order of their trees, or one tree per line.

    {"message_id": "a", "parent_id": null, "message_tree_id": "a", "role": "prompter", "text": "Hi", …}
    {"message_tree_id": "a", "prompt": {"role": "prompter", "text": "Hi", "replies": […]}}

A tree gives one conversation: the path from its root along the best ranked replies. Deleted messages are skipped.
Messages of a flat tree whose parent is missing are rejected as orphans.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chatmill.conversation.chatml import Conversation, Message
from chatmill.datasets.formats.example import RawRow, Reject, UnusableRowError, list_of, text_of
from chatmill.datasets.formats.row_readers import json_rows

MAX_TREE = 50_000_000  # characters of a flat tree, which memory holds, with 1,000 for each of its messages
_ROLES = {"prompter": "user", "assistant": "assistant"}


def rows(file: Path) -> Iterator[RawRow | Reject]:
    """The trees of a file, each as its root with `replies`."""
    tree: list[RawRow] = []
    size = 0
    for row in json_rows(file):
        flat = None if isinstance(row, Reject) else _flat_message(*row)
        if tree and (flat is None or flat[1]["message_tree_id"] != tree[0][1]["message_tree_id"]):
            yield from _grow(tree)
            tree, size = [], 0
        if flat is None:
            yield row
            continue
        size += 1000 + len(str(flat[1].get("text")))
        if size <= MAX_TREE:
            tree.append(flat)
        else:
            yield Reject(flat[0], "too_long", f"in a tree of over {MAX_TREE:,} characters, or 1,000 for each message")
    yield from _grow(tree)


def _flat_message(place: str, entry: Any) -> RawRow | None:
    """One message of a flat tree, with an empty list of `replies`; None for other entries."""
    if not isinstance(entry, dict) or "message_tree_id" not in entry or "prompt" in entry:
        return None
    return place, entry | {"replies": []}


def _grow(messages: list[RawRow]) -> Iterator[RawRow | Reject]:
    """The root of a flat tree with all `replies` nested, and a reject for each orphan."""
    by_id = {message.get("message_id"): message for _, message in messages}
    for place, message in messages:
        parent = message.get("parent_id")
        if parent in by_id and parent != message.get("message_id"):
            by_id[parent]["replies"].append(message)
        elif parent is not None:
            yield Reject(place, "orphan", f"the parent {parent} is not in the tree")
    yield from ((place, message) for place, message in messages if message.get("parent_id") is None)


def conversation(row: Any) -> Conversation:
    """The conversation along the best ranked replies of a tree. Raises UnusableRowError."""
    node = row.get("prompt", row) if isinstance(row, dict) else row
    if isinstance(node, dict) and node.get("deleted"):
        raise UnusableRowError("deleted", "the opening message is deleted")
    path = []
    while True:
        role = text_of(node, "role")
        if role not in _ROLES:
            raise UnusableRowError("unknown_role", f"unknown role {role[:40]!r}: expected one of {', '.join(_ROLES)}")
        path.append(Message.from_text(_ROLES[role], text_of(node, "text")))
        replies = [reply for reply in list_of(node, "replies") if isinstance(reply, dict) and not reply.get("deleted")]
        if not replies:
            return path
        node = min(replies, key=_rank)


def _rank(message: dict[str, Any]) -> float:
    rank = message.get("rank")
    return rank if isinstance(rank, int | float) else float("inf")
