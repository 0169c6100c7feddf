"""The interface of all engines: token ids in, logits out, and a key-value cache that can be rewound.

Shapes: T time (tokens given), V vocabulary.
"""

import os
import re
from collections.abc import Sequence
from typing import Protocol

import numpy as np

ONNX_FILES = {  # the graph of each ONNX engine, in the folder of an export
    "onnx": "model_shared.onnx",
    "onnx_hf": "model.onnx",
    "onnx_int8": "model_shared_int8.onnx",
    "onnx_int8_dynamic": "model_shared_int8_dynamic.onnx",
    "onnx_int4": "model_shared_int4.onnx",
}


_NO_MEMORY = re.compile(r"out of memory|allocate memory|failed to allocate|bad.?alloc", re.IGNORECASE)


class Reader(Protocol):
    """Reads one sequence in any number of calls."""

    context: int  # tokens that fit

    @property
    def length(self) -> int:
        """Tokens in the cache."""

    def append(self, ids: Sequence[int]) -> np.ndarray:
        """Read one or more ids after those in the cache: logits (V,) float32 of the next token."""


class Engine(Reader, Protocol):
    """A model that can also rewind its cache, and its properties."""

    name: str
    device: str  # cpu, cuda:0 …
    num_bytes: int  # of its weights
    vocab_size: int  # width of the logits: not less than the tokenizer's
    fingerprint: str  # of the tokenizer the model was trained with; "" if its files do not name it
    template: str  # that it was trained with; "" if its files do not name it

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens."""

    def sequence_logits(self, ids: Sequence[int]) -> np.ndarray:
        """Logits (T, V) float32 after each position of a complete sequence. Leaves the cache empty."""


class Bounds(Protocol):
    """The limits of what a model can read, and what it has read."""

    vocab_size: int
    context: int

    @property
    def length(self) -> int:
        """Tokens read so far."""


def check_append(engine: Bounds, ids: Sequence[int]) -> None:
    """Raise ValueError unless there are ids, all in the vocabulary, and they fit into the remaining context."""
    if not len(ids):
        raise ValueError("no token ids to read")
    if min(ids) < 0 or max(ids) >= engine.vocab_size:
        raise ValueError(f"token ids from {min(ids)} to {max(ids)}: expected 0 to {engine.vocab_size - 1}")
    if engine.length + len(ids) > engine.context:
        total = engine.length + len(ids)
        raise ValueError(f"{total} tokens, but the model's context is {engine.context}: give it a shorter text")


def check_rewind(engine: Bounds, length: int) -> None:
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


def default_threads() -> int:
    """One less than the cores this process may use: threads that wait for a busy core are many times slower."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - 1)
