"""Several chats with one model, each with a cache of its own: prompts are read one by one, answers decoded together.

Engines that can do this are `SupportsBatching`; any other serves one chat after another.

Shapes: B chats of a step, T time (tokens given), V vocabulary.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

import numpy as np

from chatmill.engines.engine import Engine, check_append, check_rewind


class Caches(Protocol):
    """The key-value caches of several sequences, one in each row; the caller knows their lengths."""

    continues: bool  # whether `run` can read ids after others

    def read(self, row: int, ids: Sequence[int], past: int) -> np.ndarray:
        """Read ids after the first `past` tokens of a row: logits (V,) of the next token."""

    def step(self, ids: Sequence[int], pasts: Sequence[int]) -> np.ndarray:
        """Read one id for each of the first rows, after its past: logits (B, V) of the next tokens."""

    def run(self, row: int, ids: Sequence[int], past: int, *, keep: int) -> np.ndarray:
        """Read ids after the first `past` tokens of a row: logits (keep, V) after each of the last ids."""

    def swap(self, first: int, second: int, length: int) -> None:
        """Exchange the first `length` tokens of two rows."""


class CachedEngine:
    """The methods of an engine that reads into one row of shared caches; subclasses set its other attributes."""

    vocab_size: int
    context: int

    def __init__(self, caches: Caches, row: int) -> None:
        self.length = 0
        self.row = row  # of the caches
        self._caches = caches

    def append(self, ids: Sequence[int]) -> np.ndarray:
        """Read ids after those in the cache: logits (V,) of the next token."""
        check_append(self, ids)
        logits = self._caches.read(self.row, ids, self.length)
        self.length += len(ids)
        return logits

    def append_all(self, ids: Sequence[int]) -> np.ndarray:
        """Read ids after those in the cache: logits (T, V) after each. Unless it `continues`, they are not cached."""
        check_append(self, ids)
        logits = self._caches.run(self.row, ids, self.length, keep=len(ids))
        self.length += len(ids) if self.continues else 0
        return logits

    @property
    def continues(self) -> bool:
        """Whether `append_all` can read a sequence in several calls."""
        return self._caches.continues

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        check_rewind(self, length)
        self.length = length

    def sequence_logits(self, ids: Sequence[int]) -> np.ndarray:
        """Logits (T, V) after each position of a complete sequence."""
        self.rewind(0)
        logits = self.append_all(ids)
        self.rewind(0)
        return logits


class BatchedChat(CachedEngine):
    """The engine of one chat of a ChatBatch; its row may change."""

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
            raise ValueError(f"all {len(self._rows)} rows are taken: let a chat leave first")
        row = self._rows.index(None)
        chat = self._rows[row] = BatchedChat(self._model, self._caches, row)
        return chat

    def leave(self, chat: BatchedChat) -> None:
        """Remove a chat, which can no longer be used."""
        self._rows[chat.row], chat.row = None, -1

    def step(self, given: Sequence[tuple[BatchedChat, int]]) -> np.ndarray:
        """Read one id for each of some chats: logits (B, V) of the next tokens, in the same order."""
        for chat, token in given:
            assert self._rows[chat.row] is chat, "this chat has left"
            check_append(chat, [token])
        rows = self._bring_forward([chat for chat, _ in given])
        in_order = rows == list(range(len(rows)))  # as they stay while the same chats continue
        ordered = given if in_order else sorted(given, key=lambda pair: pair[0].row)
        logits = self._caches.step([token for _, token in ordered], [chat.length for chat, _ in ordered])
        for chat, _ in given:
            chat.length += 1
        return logits if in_order else logits[rows]

    def _bring_forward(self, chats: list[BatchedChat]) -> list[int]:
        """Move these chats to the first rows, and return the row of each; those that are there stay."""
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
        """A batch of up to `rows` chats. Raises ValueError for a model that reads one chat at a time."""


class SingleRowCaches:
    """The cache of an engine that holds one chat, as caches of one row."""

    continues = False

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def read(self, row: int, ids: Sequence[int], past: int) -> np.ndarray:
        """Read ids after the first `past` tokens: logits (V,) of the next token."""
        self._engine.rewind(past)
        return self._engine.append(ids)

    def step(self, ids: Sequence[int], pasts: Sequence[int]) -> np.ndarray:
        """Read one id after the first `pasts[0]` tokens: logits (1, V) of the next token."""
        return self.read(0, ids, pasts[0])[None]

    def run(self, row: int, ids: Sequence[int], past: int, *, keep: int) -> np.ndarray:
        """Read a complete sequence: logits (keep, V) after each of the last ids."""
        assert past == 0, "the engine returns logits after each id for complete sequences only"
        return self._engine.sequence_logits(ids)[-keep:]

    def swap(self, first: int, second: int, length: int) -> None:
        """Do nothing: there is only one row."""


def make_chat_batch(model: Engine, rows: int) -> tuple[ChatBatch, int]:
    """A batch of chats with a model, and how many it has room for: `rows`, or one."""
    if isinstance(model, SupportsBatching):
        with suppress(ValueError):  # a model with chunks or a sliding window
            return model.chat_batch(rows), rows
    return ChatBatch(model, SingleRowCaches(model), 1), 1
