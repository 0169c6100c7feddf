"""Several chats with one model, each with a cache of its own: they are read one by one, and continued all at once.

Engines that can do this are `SupportsBatching`; any other is the engine of one chat after another.

Shapes: B chats that go on, V vocabulary.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

import numpy as np

from chatmill.engines.engine import Engine, check_append, check_rewind


class Caches(Protocol):
    """What a model has read, in rows that know nothing of their lengths."""

    def read(self, row: int, ids: Sequence[int], past: int) -> np.ndarray:
        """Read ids after the `past` ones of a row: logits (V,) of what comes next."""

    def step(self, ids: Sequence[int], pasts: Sequence[int]) -> np.ndarray:
        """Read one id for each of the first rows, after as many as its past: logits (B, V) of what comes next."""

    def run(self, row: int, ids: Sequence[int], past: int, *, keep: int) -> np.ndarray:
        """Read ids after the `past` ones of a row: logits (keep, V) after each of the last ones."""

    def swap(self, first: int, second: int, length: int) -> None:
        """Exchange the first `length` tokens of two rows."""


class CachedEngine:
    """What an engine does with a row of the caches; what it is, its own kind says."""

    vocab_size: int
    context: int

    def __init__(self, caches: Caches, row: int) -> None:
        self.length = 0
        self.row = row  # of the caches
        self._caches = caches

    def append(self, ids: Sequence[int]) -> np.ndarray:
        """Read ids after those in the cache: logits (V,) of what comes next."""
        check_append(self, ids)
        logits = self._caches.read(self.row, ids, self.length)
        self.length += len(ids)
        return logits

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        check_rewind(self, length)
        self.length = length

    def sequence_logits(self, ids: Sequence[int]) -> np.ndarray:
        """Logits (T, V) after each position of a whole sequence."""
        self.rewind(0)
        check_append(self, ids)
        return self._caches.run(self.row, ids, 0, keep=len(ids))


class BatchedChat(CachedEngine):
    """The engine of one of several chats, whose row changes."""

    def __init__(self, model: Engine, caches: Caches, row: int) -> None:
        super().__init__(caches, row)
        self.name, self.device, self.num_bytes = model.name, model.device, model.num_bytes
        self.vocab_size, self.context = model.vocab_size, model.context
        self.fingerprint, self.template = model.fingerprint, model.template


class ChatBatch:
    """Chats that share one model: any may join, leave, or be left out of a step at any time."""

    def __init__(self, model: Engine, caches: Caches, rows: int) -> None:
        self._model, self._caches = model, caches
        self._rows: list[BatchedChat | None] = [None] * rows

    def join(self) -> BatchedChat:
        """A new chat, with an empty cache. Raises ValueError where all rows are taken."""
        if None not in self._rows:
            raise ValueError(f"all {len(self._rows)} chats are taken: let one leave first")
        row = self._rows.index(None)
        chat = self._rows[row] = BatchedChat(self._model, self._caches, row)
        return chat

    def leave(self, chat: BatchedChat) -> None:
        """Forget a chat, which can be used no longer."""
        self._rows[chat.row], chat.row = None, -1

    def step(self, given: Sequence[tuple[BatchedChat, int]]) -> np.ndarray:
        """Read one id for each of some chats: logits (B, V), in the same order, of what comes next."""
        for chat, token in given:
            assert self._rows[chat.row] is chat, "a chat that has left"
            check_append(chat, [token])
        rows = self._bring_forward([chat for chat, _ in given])
        first = rows == list(range(len(rows)))  # as they are while the same ones go on
        ordered = given if first else sorted(given, key=lambda one: one[0].row)
        logits = self._caches.step([token for _, token in ordered], [chat.length for chat, _ in ordered])
        for chat, _ in given:
            chat.length += 1
        return logits if first else logits[rows]

    def _bring_forward(self, chats: list[BatchedChat]) -> list[int]:
        """Let these have the first rows, and say which. While the same ones go on, nothing moves."""
        if max(chat.row for chat in chats) >= len(chats):
            free = [row for row, chat in enumerate(self._rows[: len(chats)]) if chat not in chats]
            for chat in chats:
                if chat.row >= len(chats):
                    self._swap(chat.row, free.pop())
        return [chat.row for chat in chats]

    def _swap(self, first: int, second: int) -> None:
        moved = [self._rows[first], self._rows[second]]
        self._caches.swap(first, second, max(chat.length for chat in moved if chat))
        self._rows[second], self._rows[first] = moved
        for row in (first, second):
            if chat := self._rows[row]:
                chat.row = row


@runtime_checkable
class SupportsBatching(Protocol):
    """An engine that several chats can use at once."""

    def chat_batch(self, rows: int) -> ChatBatch:
        """As many chats, each with a cache of its own. Raises ValueError for a model that reads one at a time."""


class SingleRowCaches:
    """The cache of an engine that holds one chat, as caches of one row."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def read(self, row: int, ids: Sequence[int], past: int) -> np.ndarray:
        """Read ids after the first `past` ones: logits (V,) of what comes next."""
        self._engine.rewind(past)
        return self._engine.append(ids)

    def step(self, ids: Sequence[int], pasts: Sequence[int]) -> np.ndarray:
        """Read one id after the first `pasts[0]` ones: logits (1, V) of what comes next."""
        return self.read(0, ids, pasts[0])[None]

    def run(self, row: int, ids: Sequence[int], past: int, *, keep: int) -> np.ndarray:
        """Read a whole sequence: logits (keep, V) after each of the last ids."""
        assert past == 0, "the engine gives logits after each id of whole sequences only"
        return self._engine.sequence_logits(ids)[-keep:]

    def swap(self, first: int, second: int, length: int) -> None:
        """There is one row, which stays where it is."""


def make_chat_batch(model: Engine, rows: int) -> tuple[ChatBatch, int]:
    """The chats of a model, and how many of them there can be at once: `rows`, or one."""
    if isinstance(model, SupportsBatching):
        with suppress(ValueError):  # not with a sliding window
            return model.chat_batch(rows), rows
    return ChatBatch(model, SingleRowCaches(model), 1), 1
