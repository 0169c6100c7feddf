"""The rows of a JSON file that is one object, which holds them by name, or in lists.

    {"7f": {"turns": […]}, "c3": {"turns": […]}}       {"7f": [message, …], "c3": [message, …]}
    {"version": 1, "data": [row, …]}                   {"train": [row, …], "test": [row, …]}

What stands beside such lists is ignored.
"""

from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from chatmill.datasets.formats.compression import open_decompressed
from chatmill.datasets.formats.example import RawRow, Reject
from chatmill.datasets.formats.json_document import members, parse_json
from chatmill.datasets.formats.row_readers import MAX_ROW_BYTES, json_entries, nonblank_lines

_LISTS = {
    "data", "entries", "examples", "instances", "items", "records", "rows", "samples",
    "train", "training", "validation", "valid", "val", "dev", "test", "eval",
}  # fmt: skip
_SPEAKERS = {"role", "from", "speaker"}  # keys of a message
_FIRST = 8  # members of an object, by which it is told what it holds
_MANY = 1000  # entries of a list of rows, after which no other member is looked at


class _Member(NamedTuple):
    """A member of an object, of a list its first entry."""

    key: str
    value: Any
    is_list: bool

    @property
    def is_list_of_objects(self) -> bool:
        return self.is_list and isinstance(self.value, dict)

    @property
    def is_named_list(self) -> bool:
        """Whether it is a list of rows by its name."""
        return self.is_list and self.key in _LISTS and isinstance(self.value, dict | list)

    @property
    def is_list_of_rows(self) -> bool:
        """Whether it is so by its name, or as its first entry has a list, which messages have not."""
        if self.is_named_list or not self.is_list_of_objects:
            return self.is_named_list
        return any(isinstance(value, list) for value in self.value.values()) and not _SPEAKERS & self.value.keys()


def object_rows(file: Path, columns: Collection[str] = ()) -> Iterator[RawRow | Reject] | None:
    """The rows of a JSON object that holds them by name, or in lists; None for a file that holds something else.

    An object with one of the columns is a row itself, and a list whose first entry has one is a list of rows.
    """
    try:
        contents = _contents(file, {*columns}) if _is_object(file) else None
    except ValueError:
        return None  # several values, or a broken one, of which the other readers say the place
    if contents == "members":
        return (row if isinstance(row, Reject) else (row[0], row[2]) for row in json_entries(file))
    return _listed(file) if contents == "lists" else None


def _is_object(file: Path) -> bool:
    """Whether a file begins as an object, and not as lines of objects."""
    with open_decompressed(file) as stream:
        start = stream.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    lines = list(islice((row for row in nonblank_lines(file) if not isinstance(row, Reject)), 2))
    return start.startswith(b"{") and not (len(lines) == 2 and _is_json_object(lines[0][1]))


def _is_json_object(line: str) -> bool:
    try:
        return isinstance(parse_json(line), dict)
    except ValueError:
        return False


def _contents(file: Path, columns: set[str]) -> Literal["members", "lists"] | None:
    """What the rows are: the members of an object, or the entries of lists in it; None where it is a row itself."""
    found: list[_Member] = []
    with open_decompressed(file) as stream:
        for _, key, value in islice(members(file, stream, MAX_ROW_BYTES), _FIRST):
            if key in columns:
                return None
            member, count = _member(key, value)
            if member.is_list_of_objects and columns & member.value.keys():
                return "lists"
            if member.is_list_of_rows and count > _MANY:
                return "lists"
            found.append(member)
    lists = [member for member in found if member.is_list_of_objects or member.is_named_list]
    if lists and all(member.is_named_list for member in lists):
        return "lists"
    if len(lists) == 1 and len(found) < _FIRST and lists[0].is_list_of_rows:
        return "lists"
    alike = len({member.is_list for member in found}) == 1 and all(isinstance(member.value, dict) for member in found)
    return "members" if alike and len(found) > 1 and found[0].value.keys() & found[1].value.keys() else None


def _member(key: str, value: Any) -> tuple[_Member, int]:
    """A member, and of a list the number of its entries, which are counted to one over _MANY."""
    if not isinstance(value, Iterator):
        return _Member(key, value, is_list=False), 0
    entries = (entry[2] for entry in islice(value, _MANY + 1) if not isinstance(entry, Reject))
    first = next(entries, None)
    return _Member(key, first, is_list=True), (first is not None) + sum(1 for _ in entries)


def _listed(file: Path) -> Iterator[RawRow | Reject]:
    """The entries of the lists that begin with an object, or are named as lists of rows and begin with a list."""
    with open_decompressed(file) as stream:
        for _, key, value in members(file, stream, MAX_ROW_BYTES):
            if isinstance(value, Iterator):
                yield from _rows(key, value)


def _rows(key: str, entries: Iterator[tuple[str, None, Any] | Reject]) -> Iterator[RawRow | Reject]:
    """The entries of a list as rows; none of one that holds something else."""
    for number, entry in enumerate(entries, start=1):
        if isinstance(entry, Reject):
            yield entry
        elif number == 1 and not isinstance(entry[2], dict | list if key in _LISTS else dict):
            return
        else:
            yield f"{entry[0]}, entry {number} of {key}", entry[2]
