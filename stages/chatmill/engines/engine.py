"""The interface of all engines: token ids in, logits out, and a key-value cache that can be rewound.

Shapes: T time (tokens given), V vocabulary.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import numpy as np

ONNX_FILES = {  # the graph of each ONNX engine, in the folder of an export
    "onnx": "model_shared.onnx",
    "onnx_hf": "model.onnx",
    "onnx_int8": "model_shared_int8.onnx",
    "onnx_int8_dynamic": "model_shared_int8_dynamic.onnx",
    "onnx_int4": "model_shared_int4.onnx",
}
_NO_MEMORY = re.compile(r"out of memory|allocate memory|failed to allocate|bad.?alloc", re.IGNORECASE)


class Engine(Protocol):
    """A model that reads one sequence in any number of calls, and can rewind its cache."""

    name: str
    device: str  # cpu, cuda:0 …
    num_bytes: int  # of its weights
    fingerprint: str  # of the tokenizer the model was trained with; "" if its files do not name it
    template: str  # that it was trained with; "" if its files do not name it
    vocab_size: int  # width of the logits: not less than the tokenizer's
    context: int  # tokens that fit

    @property
    def length(self) -> int:
        """Tokens in the cache."""

    def append(self, ids: Sequence[int]) -> np.ndarray:
        """Read one or more ids after those in the cache: logits (V,) float32 of the next token."""

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens."""

    def sequence_logits(self, ids: Sequence[int]) -> np.ndarray:
        """Logits (T, V) float32 after each position of a complete sequence. Leaves the cache empty."""


def check_append(engine: "Engine | CachedEngine", ids: Sequence[int]) -> None:
    """Raise ValueError unless there are ids, all in the vocabulary, and they fit into the remaining context."""
    if not len(ids):
        raise ValueError("no token ids to read")
    if min(ids) < 0 or max(ids) >= engine.vocab_size:
        raise ValueError(f"token ids from {min(ids)} to {max(ids)}: expected 0 to {engine.vocab_size - 1}")
    if engine.length + len(ids) > engine.context:
        total = engine.length + len(ids)
        raise ValueError(f"{total} tokens, but the model's context is {engine.context}: give it a shorter text")


def check_rewind(engine: "Engine | CachedEngine", length: int) -> None:
    """Raise ValueError unless the cache holds `length` tokens."""
    if not 0 <= length <= engine.length:
        raise ValueError(f"cannot rewind to {length} tokens: the cache holds {engine.length}")


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


# Several chats with one model, each with a cache of its own: prompts are read one by one, answers decoded together.


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
    """An engine for one chat, in one row of shared caches; `ChatBatch` may move it to another row."""

    def __init__(self, caches: Caches, row: int, vocab_size: int, context: int) -> None:
        self.row, self.vocab_size, self.context = row, vocab_size, context
        self.length = 0
        self.continues = caches.continues  # whether `append_all` can read a sequence in several calls
        self._caches = caches

    def append(self, ids: Sequence[int]) -> np.ndarray:
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

    def rewind(self, length: int) -> None:
        check_rewind(self, length)
        self.length = length

    def sequence_logits(self, ids: Sequence[int]) -> np.ndarray:
        self.rewind(0)
        logits = self.append_all(ids)
        self.rewind(0)
        return logits


class ChatBatch:
    """Chats that share one model; any of them may be left out of a step."""

    def __init__(self, model: Engine, caches: Caches, rows: int) -> None:
        self.chats = [CachedEngine(caches, row, model.vocab_size, model.context) for row in range(rows)]
        self._caches = caches
        self._rows = self.chats[:]  # the chat of each row

    def step(self, given: Sequence[tuple[CachedEngine, int]]) -> np.ndarray:
        """Read one id for each of some chats: logits (B, V) of the next tokens, in the same order."""
        for chat, token in given:
            check_append(chat, [token])
        rows = self._bring_forward([chat for chat, _ in given])
        in_order = rows == list(range(len(rows)))  # as they stay while the same chats continue
        ordered = given if in_order else sorted(given, key=lambda pair: pair[0].row)
        logits = self._caches.step([token for _, token in ordered], [chat.length for chat, _ in ordered])
        for chat, _ in given:
            chat.length += 1
        return logits if in_order else logits[rows]

    def _bring_forward(self, chats: list[CachedEngine]) -> list[int]:
        """Move these chats to the first rows, and return the row of each; those that are there stay."""
        displaced = [chat for chat in self._rows[: len(chats)] if chat not in chats]
        for chat in chats:
            if chat.row >= len(chats):
                other = displaced.pop()
                self._caches.swap(chat.row, other.row, max(chat.length, other.length))
                chat.row, other.row = other.row, chat.row
                self._rows[chat.row], self._rows[other.row] = chat, other
        return [chat.row for chat in chats]


@runtime_checkable
class SupportsBatching(Protocol):
    """An engine that several chats can use at once."""

    def new_caches(self, rows: int) -> Caches | None:
        """The caches of `rows` chats; None for a model that reads one chat at a time."""


class SingleRowCaches:
    """The cache of an engine that holds one chat, as caches of one row."""

    continues = False

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def read(self, row: int, ids: Sequence[int], past: int) -> np.ndarray:
        self._engine.rewind(past)
        return self._engine.append(ids)

    def step(self, ids: Sequence[int], pasts: Sequence[int]) -> np.ndarray:
        return self.read(0, ids, pasts[0])[None]

    def run(self, row: int, ids: Sequence[int], past: int, *, keep: int) -> np.ndarray:
        assert past == 0, "the engine returns logits after each id for complete sequences only"
        return self._engine.sequence_logits(ids)[-keep:]

    def swap(self, first: int, second: int, length: int) -> None:
        """Do nothing: there is only one row."""


def make_chat_batch(model: Engine, rows: int) -> ChatBatch:
    """A batch of `rows` chats with a model, or of one if it reads one chat at a time."""
    caches = model.new_caches(rows) if isinstance(model, SupportsBatching) else None
    return ChatBatch(model, caches, rows) if caches else ChatBatch(model, SingleRowCaches(model), 1)
