"""Engines: token ids in, logits out, and a key-value cache that can be rewound.

Shapes: B batch, T time (tokens given), V vocabulary.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Protocol, Self

import numpy as np

ONNX_FILES = {  # the graph of each ONNX engine, in the folder of an export
    "onnx": "model_shared.onnx",
    "onnx_hf": "model.onnx",
    "onnx_int8": "model_shared_int8.onnx",
    "onnx_int8_dynamic": "model_shared_int8_dynamic.onnx",
    "onnx_int4": "model_shared_int4.onnx",
}
_NO_MEMORY = re.compile(r"out of memory|allocate memory|failed to allocate|bad.?alloc", re.IGNORECASE)


class Cache(Protocol):
    """A model on a device, with the keys and values of what it has read. The caller knows how many of them count."""

    device: str  # cpu, cuda:0 …
    num_bytes: int  # of the weights
    vocab_size: int  # width of the logits: not less than the tokenizer's
    context: int  # tokens that fit

    def read(self, row: int, ids: Sequence[int], past: int, *, all_logits: bool = False) -> np.ndarray:
        """Read ids after the first `past` tokens of a row: logits (1, V) float32 after the last one, or (T, V)."""

    def with_rows(self, rows: int) -> "Caches | None":
        """Empty caches of several sequences for the model; None where it reads one at a time."""


class Caches(Cache, Protocol):
    """The caches of several sequences, one in each row."""

    def step(self, ids: Sequence[int], pasts: Sequence[int]) -> np.ndarray:
        """Read one id for each of the first rows, after its past: logits (B, V) of the next tokens."""

    def swap(self, first: int, second: int, length: int) -> None:
        """Exchange the first `length` tokens of two rows."""


class Engine:
    """A model that reads one sequence in any number of calls. Its cache is a row of `caches`."""

    def __init__(self, caches: Cache, name: str, *, fingerprint: str, template: str) -> None:
        """`fingerprint` is of the tokenizer that the model was trained with; "" where its files name none."""
        self.caches, self.name, self.fingerprint, self.template = caches, name, fingerprint, template
        self.device, self.num_bytes = caches.device, caches.num_bytes
        self.vocab_size, self.context = caches.vocab_size, caches.context
        self.row = self.length = 0  # length: tokens in the cache

    def append(self, ids: Sequence[int]) -> np.ndarray:
        """Read one or more ids after those in the cache: logits (V,) float32 of the next token."""
        self.check_append(ids)
        logits: np.ndarray = self.caches.read(self.row, ids, self.length)[-1]
        self.length += len(ids)
        return logits

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot rewind to {length} tokens: the cache holds {self.length}")
        self.length = length

    def sequence_logits(self, ids: Sequence[int]) -> np.ndarray:
        """Logits (T, V) float32 after each position of a complete sequence. Leaves the cache empty."""
        self.rewind(0)
        self.check_append(ids)
        return self.caches.read(self.row, ids, 0, all_logits=True)

    def check_append(self, ids: Sequence[int]) -> None:
        """Raise ValueError unless there are ids, all in the vocabulary, and they fit into the remaining context."""
        if not len(ids):
            raise ValueError("no token ids to read")
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise ValueError(f"token ids from {min(ids)} to {max(ids)}: expected 0 to {self.vocab_size - 1}")
        total = self.length + len(ids)
        if total > self.context:
            raise ValueError(f"{total} tokens, but the model's context is {self.context}: give it a shorter text")

    def with_row(self, caches: Cache, row: int) -> Self:
        """An engine of the same model for another sequence, whose cache is a row of `caches`."""
        engine = copy(self)
        engine.caches, engine.row, engine.length = caches, row, 0
        return engine


class ChatBatch:
    """Chats that share one model, each with a cache of its own; any of them may be left out of a step.

    Prompts are read one by one, by `append` of a chat.
    """

    def __init__(self, model: Engine, rows: int) -> None:
        """`rows` chats, or one with a model that reads one at a time."""
        self._caches = model.caches.with_rows(rows)
        self.chats = [model.with_row(self._caches, row) for row in range(rows)] if self._caches else [model]
        self._rows = self.chats[:]  # the chat of each row

    def step(self, given: Sequence[tuple[Engine, int]]) -> np.ndarray:
        """Read one id for each of some chats: logits (B, V) of the next tokens, in the same order."""
        if self._caches is None:
            return np.stack([chat.append([token]) for chat, token in given])
        for chat, token in given:
            chat.check_append([token])
        rows = self._bring_forward(self._caches, [chat for chat, _ in given])
        in_order = rows == list(range(len(rows)))  # as they stay while the same chats continue
        ordered = given if in_order else sorted(given, key=lambda pair: pair[0].row)
        logits = self._caches.step([token for _, token in ordered], [chat.length for chat, _ in ordered])
        for chat, _ in given:
            chat.length += 1
        return logits if in_order else logits[rows]

    def _bring_forward(self, caches: Caches, chats: list[Engine]) -> list[int]:
        """Move these chats to the first rows, and return the row of each; those that are there stay."""
        displaced = [chat for chat in self._rows[: len(chats)] if chat not in chats]
        for chat in chats:
            if chat.row >= len(chats):
                other = displaced.pop()
                caches.swap(chat.row, other.row, max(chat.length, other.length))
                chat.row, other.row = other.row, chat.row
                self._rows[chat.row], self._rows[other.row] = chat, other
        return [chat.row for chat in chats]


def as_memory_error(error: Exception, device: str) -> MemoryError | None:
    """The error to raise where another one means that a device is out of memory; None where it does not."""
    if not isinstance(error, MemoryError) and not _NO_MEMORY.search(str(error)):
        return None
    remedies = ["shorten the conversation (/clear)", "lower max_tokens", "use a smaller model"]
    remedies += [] if device.startswith(("cpu", "auto")) else ["use --device cpu"]
    return MemoryError(f"out of memory on {device}: {', or '.join(remedies)}")


@contextmanager
def memory_errors(device: str) -> Iterator[None]:
    """Raise MemoryError, with the remedies, where an error means that the device is out of memory."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if out_of_memory := as_memory_error(error, device):
            raise out_of_memory from error
        raise


def default_threads() -> int:
    """One less than the cores this process may use: threads that wait for a busy core are many times slower."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - 1)
