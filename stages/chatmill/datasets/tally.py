"""Counts what became of the messages of a dataset: read = kept + rejected, for messages and for bytes of their text."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from chatmill.datasets.formats.example import Extent, Reject


class Tally:
    """The messages and bytes of a dataset by what became of them, and its conversations by the rules of their repair.

    What was read is counted before the repair, so that nothing can get lost in it.
    """

    def __init__(self) -> None:
        self._counts = {name: Counter[str]() for name in Extent._fields}
        self._rejected = {name: Counter[str]() for name in Extent._fields}
        self._repaired = Counter[str]()

    def read(self, extent: Extent) -> None:
        """Count what an entry holds."""
        self._counts["messages"]["read"] += extent.messages
        self._counts["bytes"]["read"] += extent.bytes

    def keep(self, extent: Extent, rules: Iterable[str]) -> None:
        """Count what remains of a conversation, and the rules of its repair."""
        self._counts["messages"]["kept"] += extent.messages
        self._counts["bytes"]["kept"] += extent.bytes
        for rule in rules:
            self._repaired[rule] += 1

    def reject(self, reject: Reject) -> None:
        """Count what was left out."""
        self._rejected["messages"][reject.reason] += reject.messages
        self._rejected["bytes"][reject.reason] += reject.bytes

    def add(self, other: "Tally") -> None:
        """Count what another part of the dataset holds."""
        for own, more in ((self._counts, other._counts), (self._rejected, other._rejected)):
            for name in Extent._fields:
                own[name].update(more[name])
        self._repaired.update(other._repaired)

    def content(self) -> dict[str, Any]:
        """The counts, as `messages`, `bytes` and `repaired`."""
        result: dict[str, Any] = {}
        for name, counts in self._counts.items():
            rejected = dict(sorted(self._rejected[name].items()))
            assert counts["read"] == counts["kept"] + sum(rejected.values()), f"{name}: {counts}, {rejected}"
            result[name] = {"read": counts["read"], "kept": counts["kept"], "rejected": rejected}
        return result | {"repaired": dict(sorted(self._repaired.items()))}
