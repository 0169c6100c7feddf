"""The engine of our `shared` graph, whose key-value caches are read and written in place; it opens other graphs, too.

Needs neither PyTorch nor DVC.

Shapes: R rows (sequences), B of them read at once, T time (tokens given), K key-value heads, L cache length,
D head size, V vocabulary.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime

from chatmill.engines.engine import CachedEngine, ChatBatch, Engine
from chatmill.engines.graph_engine import GraphEngine
from chatmill.engines.onnx_session import Session

PREFILL_CHUNK = 512  # tokens read at once: more are no faster, but take memory for their attention


class DecodeStep(NamedTuple):
    """The buffers of a run of one token for each of some rows, bound once."""

    binding: onnxruntime.IOBinding
    ids: np.ndarray  # (B, 1)
    last: np.ndarray  # (B,) the position of each
    total: np.ndarray  # () length of the longest row
    logits: np.ndarray  # (B, 1, V)


class SharedCaches:
    """The graph, with (R, K, L, D) keys and values of each layer; the caller knows how much of a row is filled."""

    continues = True

    def __init__(self, session: Session, rows: int) -> None:
        self._session, graph = session, session.session
        self.context = int(session.metadata["chatmill.context"])
        self.vocab_size = graph.get_outputs()[0].shape[-1]
        pasts = [node for node in graph.get_inputs() if node.name.startswith("past_key_values.")]
        shapes = {node.name: (rows, node.shape[1], self.context, node.shape[3]) for node in pasts}
        self._caches = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        self._steps: dict[range, DecodeStep] = {}
        self._readers: dict[int, onnxruntime.IOBinding] = {}

    def read(self, row: int, ids: Sequence[int], past: int) -> np.ndarray:
        """Read ids after the first `past` tokens of a row, in chunks: logits (V,) of the next token."""
        if len(ids) == 1:
            last: np.ndarray = self.step(ids, [past], row)[0]
            return last
        for start in range(0, len(ids), PREFILL_CHUNK):
            logits = self.run(row, ids[start : start + PREFILL_CHUNK], past + start, keep=1)
        last = logits[0]
        return last

    def step(self, ids: Sequence[int], pasts: Sequence[int], first: int = 0) -> np.ndarray:
        """Read one id for each row from `first` on, after its past: logits (B, V) of the next tokens."""
        rows = range(first, first + len(ids))
        step = self._steps.get(rows) or self._steps.setdefault(rows, self._new_step(rows))
        step.ids[:, 0] = ids
        step.last[:] = pasts
        step.total[...] = max(pasts) + 1
        self._session.run_bound(step.binding)
        return step.logits[:, 0].copy()

    def run(self, row: int, ids: Sequence[int], past: int, *, keep: int) -> np.ndarray:
        """Read ids after the first `past` tokens of a row: logits (keep, V) after each of the last ids."""
        binding = self._readers.get(row) or self._readers.setdefault(row, self._new_binding(range(row, row + 1)))
        total = past + len(ids)
        _bind_inputs(
            binding, np.array([ids], np.int64), np.array([total - 1], np.int32), np.array(total, np.int32), keep
        )
        binding.bind_output("logits")
        self._session.run_bound(binding)
        logits: np.ndarray = binding.get_outputs()[0].numpy()[0]
        return logits

    def swap(self, first: int, second: int, length: int) -> None:
        """Exchange the first `length` tokens of two rows."""
        for cache in self._caches.values():
            cache[[first, second], :, :length] = cache[[second, first], :, :length]

    def _new_step(self, rows: range) -> DecodeStep:
        B, binding = len(rows), self._new_binding(rows)
        ids, last, total = np.zeros((B, 1), np.int64), np.zeros(B, np.int32), np.zeros((), np.int32)
        logits = np.zeros((B, 1, self.vocab_size), np.float32)
        _bind_inputs(binding, ids, last, total, 1)
        binding.bind_ortvalue_output("logits", onnxruntime.OrtValue.ortvalue_from_numpy(logits))
        return DecodeStep(binding, ids, last, total, logits)

    def _new_binding(self, rows: range) -> onnxruntime.IOBinding:
        binding = self._session.session.io_binding()
        binding.bind_output("logits")  # bound first, it is the first of the outputs
        for name, cache in self._caches.items():
            value = onnxruntime.OrtValue.ortvalue_from_numpy(cache[rows.start : rows.stop])
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(name.replace("past_key_values", "present"), value)
        return binding


def _bind_inputs(
    binding: onnxruntime.IOBinding, ids: np.ndarray, last: np.ndarray, total: np.ndarray, keep: int
) -> None:
    """Bind the memory of the arrays, so that each run reads what was last written into them."""
    names = ("input_ids", "seqlens_k", "total_sequence_length", "logits_to_keep")
    for name, array in zip(names, (ids, last, total, np.array([keep], np.int64)), strict=True):
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))


class SharedCacheEngine(CachedEngine):
    """Runs the `shared` graph of chatmill.onnx_export.graphs."""

    def __init__(self, session: Session, name: str) -> None:
        caches = SharedCaches(session, rows=1)
        super().__init__(caches, row=0)
        self.name, self.device, self.num_bytes = name, session.device, session.num_bytes
        self.context, self.vocab_size = caches.context, caches.vocab_size
        self.fingerprint = session.metadata["chatmill.fingerprint"]
        self.template = session.metadata["chatmill.template"]
        self._session = session

    def chat_batch(self, rows: int) -> ChatBatch:
        return ChatBatch(self, SharedCaches(self._session, rows), rows)


def open_onnx_engine(
    file: Path, *, name: str, threads: int | None = None, context: int | None = None, device: str = "cpu"
) -> Engine:
    """Open the engine that fits the graph; `context` is the number of tokens that an external one was trained for.

    Raises ValueError, with the reason, if the graph cannot be read or run.
    """
    if not file.is_file():
        raise ValueError(f"{file}: not a regular file: expected an ONNX graph")
    session = Session(file, threads=threads, device=device)
    is_shared = any(node.name == "seqlens_k" for node in session.session.get_inputs())
    if not is_shared or "chatmill.format" not in session.metadata:
        return GraphEngine(session, name, context)
    if session.device != "cpu":
        raise ValueError(f"{file}: it runs on the CPU only: use --device cpu, or --model data/model for PyTorch")
    return SharedCacheEngine(session, name)
