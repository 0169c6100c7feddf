"""OpenAssistant's message trees, in JSON lines: flat messages in the order of their trees, or one tree per line.

{"message_id": "a", "parent_id": null, "message_tree_id": "a", "role": "prompter", "text": "Hi", …}
{"message_tree_id": "a", "prompt": {"role": "prompter", "text": "Hi", "replies": […]}}
"""

from collections.abc import Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from chatmill.datasets.formats.example import RawRow, Reject
from chatmill.datasets.formats.mapping import REPLIES, Columns, TableMapping
from chatmill.datasets.formats.row_readers import json_rows
from chatmill.datasets.formats.table import TableReader, reader_of
from chatmill.datasets.formats.trees import grow

_MESSAGE = {"content": "text", "rank": "rank", "deleted": "deleted"}
_ROW = Columns.model_validate({"id": "message_id", "parent": "parent_id", "tree": "message_tree_id", **_MESSAGE})
_GROWN = TableReader(TableMapping(columns=_ROW).nested())
_TREE, _PROMPT = (reader_of(messages=root, replies="replies", **_MESSAGE) for root in (".", "prompt"))


def rows(file: Path) -> Iterator[RawRow | Reject]:
    """The trees of a file, each as its first message with `replies`, or as an object with that as `prompt`."""
    parts = groupby(json_rows(file), _is_flat)
    return chain.from_iterable(grow(part, _ROW) if is_flat else part for is_flat, part in parts)


def _is_flat(row: RawRow | Reject) -> bool:
    """Whether a row is one message of a tree, or a reject, which may stand between those."""
    return isinstance(row, Reject) or (
        isinstance(row[1], dict) and "message_tree_id" in row[1] and "prompt" not in row[1]
    )


def reader(row: Any) -> TableReader:
    """The reader of a tree."""
    if isinstance(row, dict) and "prompt" in row:
        return _PROMPT
    return _GROWN if isinstance(row, dict) and REPLIES in row else _TREE
