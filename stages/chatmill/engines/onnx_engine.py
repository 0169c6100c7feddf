"""The ONNX Runtime engines: one runs our graph with its shared cache, one whatever other graph there is.

Needs neither PyTorch nor DVC.

Shapes: T time (tokens given), K key-value heads, L cache length, D head size, V vocabulary.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from chatmill.engines.engine import Engine, check_append, check_rewind
from chatmill.engines.foreign_graph import GraphEngine
from chatmill.engines.graph_probe import probe
from chatmill.engines.onnx_session import Session
from chatmill.manifest import NAME as MANIFEST

METADATA = {"chatmill.format", "chatmill.context", "chatmill.fingerprint", "chatmill.template"}  # of our graphs


class SharedCacheEngine:
    """Runs the `shared` graph of chatmill.onnx_graph: the cache is written in place, in buffers made once."""

    def __init__(self, session: Session, name: str) -> None:
        self.name, self.device, self.num_bytes = name, session.device, session.num_bytes
        self.context = int(session.metadata["chatmill.context"])
        self.fingerprint, self.template = (
            session.metadata["chatmill.fingerprint"],
            session.metadata["chatmill.template"],
        )
        self.length = 0
        self._session, graph = session, session.session
        self.vocab_size = graph.get_outputs()[0].shape[-1]
        self._binding = graph.io_binding()
        self._binding.bind_output("logits")  # bound first, it is the first of the outputs
        pasts = [node for node in graph.get_inputs() if node.name.startswith("past_key_values.")]
        self._buffers = [self._bind_buffer(node) for node in pasts]

    def append(self, ids: Sequence[int]) -> np.ndarray:
        """Read ids after those in the cache: logits (V,) of what comes next."""
        check_append(self, ids)
        return self._run(ids, keep=1)[-1]

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        check_rewind(self, length)
        self.length = length

    def score(self, ids: Sequence[int]) -> np.ndarray:
        """Logits (T, V) after each position of a whole sequence."""
        self.rewind(0)
        check_append(self, ids)
        logits = self._run(ids, keep=len(ids))
        self.rewind(0)
        return logits

    def _bind_buffer(self, node: onnxruntime.NodeArg) -> onnxruntime.OrtValue:
        """The same (1, K, L, D) buffer for what is read and for what is written."""
        shape = (1, node.shape[1], self.context, node.shape[3])
        buffer = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
        self._binding.bind_ortvalue_input(node.name, buffer)
        self._binding.bind_ortvalue_output(node.name.replace("past_key_values", "present"), buffer)
        return buffer

    def _run(self, ids: Sequence[int], *, keep: int) -> np.ndarray:
        total = self.length + len(ids)
        self._binding.bind_cpu_input("input_ids", np.array([ids], np.int64))
        self._binding.bind_cpu_input("seqlens_k", np.array([total - 1], np.int32))
        self._binding.bind_cpu_input("total_sequence_length", np.array(total, np.int32))
        self._binding.bind_cpu_input("logits_to_keep", np.array([keep], np.int64))
        self._binding.bind_output("logits")
        self._session.run_bound(self._binding)
        self.length = total
        return self._binding.get_outputs()[0].numpy()[0]


def open_engine(
    file: Path, *, name: str, threads: int | None = None, context: int | None = None, device: str = "cpu"
) -> Engine:
    """The engine that the graph's inputs ask for; `context` is how many tokens a graph made elsewhere was trained for.

    Raises ValueError with what it cannot be read, or run, for.
    """
    ours = (file.parent / MANIFEST).exists()
    if not ours:
        probe(file)
    session = Session(file, threads=threads, device=device)
    if not ours or not has_shared_cache(session):
        return GraphEngine(session, name, context)
    if session.device != "cpu":
        raise ValueError(f"{file}: it runs on the processor alone: say --device cpu, or --model data/model for PyTorch")
    return SharedCacheEngine(session, name)


def has_shared_cache(session: Session) -> bool:
    """Whether a graph is the `shared` one of chatmill.onnx_graph, with all that its engine takes from it."""
    nodes = {node.name: node.shape for node in session.session.get_inputs()}
    sizes = [shape[axis] for name, shape in nodes.items() if name.startswith("past_key_values.") for axis in (1, 3)]
    return (
        "logits_to_keep" in nodes
        and session.metadata.keys() >= METADATA
        and session.metadata["chatmill.context"].isdecimal()
        and all(isinstance(size, int) for size in sizes)
    )
