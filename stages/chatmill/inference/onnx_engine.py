"""The ONNX Runtime engines: one runs our graph with its shared cache, one any graph with Hugging Face's names.

Needs neither PyTorch nor DVC.

Shapes: T time (tokens given), P past, K key-value heads, L cache length, D head size, V vocabulary.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph, InvalidProtobuf, NoSuchFile, NotImplemented

from chatmill.inference.engine import Engine, check_append, check_rewind, default_threads

_UNREADABLE = (Fail, InvalidGraph, InvalidProtobuf, NoSuchFile, NotImplemented)


class _OnnxEngine:
    """What both engines have in common; `_run` reads ids and returns the logits of the last `keep` positions."""

    length: int

    def __init__(self, session: onnxruntime.InferenceSession, name: str) -> None:
        properties = session.get_modelmeta().custom_metadata_map
        self.name, self.context = name, int(properties["chatmill.context"])
        self.fingerprint, self.template = properties["chatmill.fingerprint"], properties["chatmill.template"]
        self.vocab_size = session.get_outputs()[0].shape[-1]
        self._session = session

    def append(self, ids: Sequence[int]) -> np.ndarray:
        """Read ids after those in the cache: logits (V,) of what comes next."""
        check_append(self, ids)
        return self._run(ids, keep=1)[-1]

    def score(self, ids: Sequence[int]) -> np.ndarray:
        """Logits (T, V) after each position of a whole sequence."""
        self.rewind(0)
        check_append(self, ids)
        logits = self._run(ids, keep=len(ids))
        self.rewind(0)
        return logits


class SharedCacheEngine(_OnnxEngine):
    """Runs the `shared` graph of chatmill.onnx_graph: the cache is written in place, in buffers made once."""

    def __init__(self, session: onnxruntime.InferenceSession, name: str) -> None:
        super().__init__(session, name)
        self.length = 0
        self._binding = session.io_binding()
        self._binding.bind_output("logits")  # bound first, it is the first of the outputs
        self._buffers = [self._bind_buffer(node) for node in _past(session)]

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        check_rewind(self, length)
        self.length = length

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
        self._session.run_with_iobinding(self._binding)
        self.length = total
        return self._binding.get_outputs()[0].numpy()[0]


class PastEngine(_OnnxEngine):
    """Runs a graph with Hugging Face's names: the past is handed in and comes back longer."""

    def __init__(self, session: onnxruntime.InferenceSession, name: str) -> None:
        super().__init__(session, name)
        self._outputs = ["logits", *(node.name.replace("past_key_values", "present") for node in _past(session))]
        empty = {node.name: (1, node.shape[1], 0, node.shape[3]) for node in _past(session)}
        self._past = {name: np.zeros(shape, np.float32) for name, shape in empty.items()}

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return next(iter(self._past.values())).shape[2]

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        check_rewind(self, length)
        self._past = {name: np.ascontiguousarray(past[:, :, :length]) for name, past in self._past.items()}

    def _run(self, ids: Sequence[int], *, keep: int) -> np.ndarray:
        total = self.length + len(ids)
        feed = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(self.length, total, dtype=np.int64)[None],
        }
        logits, *present = self._session.run(self._outputs, feed | self._past)
        self._past = dict(zip(self._past, present, strict=True))
        return logits[0, -keep:]


def open_engine(file: Path, *, name: str, threads: int | None = None) -> Engine:
    """The engine that the graph's inputs ask for. Raises ValueError where export_onnx did not write the file."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or default_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3  # errors, which are raised as well
    try:
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except _UNREADABLE as error:
        raise ValueError(f"{file}: ONNX Runtime cannot read it: {' '.join(str(error).split())}") from error
    if "chatmill.format" not in session.get_modelmeta().custom_metadata_map:
        raise ValueError(f"{file}: expected a graph that export_onnx wrote")
    shared = any(node.name == "logits_to_keep" for node in session.get_inputs())
    return (SharedCacheEngine if shared else PastEngine)(session, name)


def _past(session: onnxruntime.InferenceSession) -> list[onnxruntime.NodeArg]:
    return [node for node in session.get_inputs() if node.name.startswith("past_key_values.")]
