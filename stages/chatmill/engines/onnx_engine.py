"""ONNX Runtime: open a graph on a device, and run it; the caches of our own `shared` graph, and of others.

Our graph reads and writes its key-value caches in place. Needs neither PyTorch nor DVC.

Shapes: R rows (sequences), B of them read at once, T time (tokens given), P past, S = P + T, H heads,
K key-value heads, L cache length, D head size, V vocabulary.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state

from chatmill.engines.engine import as_memory_error, default_threads

_KINDS = [kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, Exception)]
ERRORS: tuple[type[Exception], ...] = (*_KINDS, MemoryError, RuntimeError)
_NUMPY_NAMES = {"double": "float64", "float": "float32"}
SPIN_OPTIONS = {  # idle threads spin for a millisecond before they sleep, which is 1.3 to 1.8 times as fast
    "allow_spinning": "1",
    "spin_duration_us": "1000",
}


def graph_bytes(file: Path) -> int:
    """Bytes of a graph, with those of the files beside it that it names."""
    beside = [part for part in file.parent.glob("*.onnx[_.]*") if part.name.encode() in file.read_bytes()]
    return sum(part.stat().st_size for part in (file, *beside))


class Session:
    """An open graph. Its inputs and outputs are NumPy arrays."""

    def __init__(self, file: Path, *, threads: int | None = None, device: str = "cpu") -> None:
        """Raises ValueError where ONNX Runtime cannot read the file, or does not have the device."""
        self.file, self.num_bytes = file, graph_bytes(file)
        providers = _providers(device)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or default_threads()
        for name, value in SPIN_OPTIONS.items():
            options.add_session_config_entry(f"session.intra_op.{name}", value)
        options.log_severity_level = 4  # errors are raised as well
        try:
            self.session = onnxruntime.InferenceSession(file, options, providers=providers)
        except ERRORS as error:
            raise ValueError(f"{file}: ONNX Runtime cannot read it: {_line(error)}") from error
        provider = self.session.get_providers()[0]
        self.device = device if device not in ("auto", "cpu") else "cuda:0" if "CUDA" in provider else "cpu"
        if not provider.lower().startswith(self.device.partition(":")[0]):
            raise ValueError(f"device {device!r}: ONNX Runtime cannot start it here: try cpu")
        self.inputs = {node.name: node for node in self.session.get_inputs()}
        self.dtypes = {name: self._dtype(name) for name in self.inputs}
        self.metadata: Mapping[str, str] = self.session.get_modelmeta().custom_metadata_map

    def _dtype(self, name: str) -> np.dtype:
        """The NumPy type of an input, whose type in the graph is as `tensor(float16)`."""
        kind: str = self.inputs[name].type.removeprefix("tensor(").removesuffix(")")
        try:
            return np.dtype(_NUMPY_NAMES.get(kind, kind))
        except TypeError as error:
            raise ValueError(f"{self.file}: input {name!r} is {kind}: export it in float32 or float16") from error

    def run(self, outputs: Sequence[str], feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name. Raises ValueError in one line, or MemoryError, where the graph does not run."""
        with self._errors_in_a_line():
            values = {name: array.astype(self.dtypes[name], copy=False) for name, array in feed.items()}
            return dict(zip(outputs, self.session.run(outputs, values), strict=True))

    def run_bound(self, binding: onnxruntime.IOBinding) -> None:
        """Run with the bound inputs and outputs; errors are those of `run`."""
        with self._errors_in_a_line():
            self.session.run_with_iobinding(binding)

    @contextmanager
    def _errors_in_a_line(self) -> Iterator[None]:
        try:
            yield
        except ERRORS as error:
            failed = ValueError(f"{self.file}: ONNX Runtime cannot run it: {_line(error)}")
            raise as_memory_error(error, self.device) or failed from error


def _providers(device: str) -> list[Any]:
    available = [name for name in onnxruntime.get_available_providers() if not name.startswith("Azure")]
    kinds = {name.removesuffix("ExecutionProvider").lower(): name for name in available}
    kind, _, index = device.partition(":")
    if kind == "auto":
        kind = "cuda" if "cuda" in kinds else "cpu"
    if kind not in kinds or not (index or "0").isdecimal():
        expected = ", ".join(["auto", *kinds])
        raise ValueError(f"device {device!r}: not available: expected one of {expected}")
    chosen = (kinds[kind], {"device_id": index} if index and kind != "cpu" else {})
    return [chosen] if kind == "cpu" else [chosen, "CPUExecutionProvider"]


def _line(error: Exception) -> str:
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", " ".join(str(error).split()))[:400]


# Our `shared` graph, whose key-value caches are read and written in place.

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

    def __init__(self, session: Session, rows: int = 1) -> None:
        self._session, self.device, self.num_bytes = session, session.device, session.num_bytes
        self.context = int(session.metadata["chatmill.context"])
        self.vocab_size: int = session.session.get_outputs()[0].shape[-1]
        pasts = [node for name, node in session.inputs.items() if name.startswith("past_key_values.")]
        shapes = {node.name: (rows, node.shape[1], self.context, node.shape[3]) for node in pasts}
        self._caches = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        self._steps: dict[range, DecodeStep] = {}
        self._readers: dict[int, onnxruntime.IOBinding] = {}

    def with_rows(self, rows: int) -> "SharedCaches":
        return SharedCaches(self._session, rows)

    def read(self, row: int, ids: Sequence[int], past: int, *, all_logits: bool = False) -> np.ndarray:
        if len(ids) == 1:
            return self.step(ids, [past], row)
        if all_logits:
            return self._run(row, ids, past, keep=len(ids))
        for start in range(0, len(ids), PREFILL_CHUNK):
            logits = self._run(row, ids[start : start + PREFILL_CHUNK], past + start, keep=1)
        return logits

    def step(self, ids: Sequence[int], pasts: Sequence[int], first: int = 0) -> np.ndarray:
        """Read one id for each row from `first` on."""
        rows = range(first, first + len(ids))
        step = self._steps.get(rows) or self._steps.setdefault(rows, self._new_step(rows))
        step.ids[:, 0] = ids
        step.last[:] = pasts
        step.total[...] = max(pasts) + 1
        self._session.run_bound(step.binding)
        return step.logits[:, 0].copy()

    def swap(self, first: int, second: int, length: int) -> None:
        for cache in self._caches.values():
            cache[[first, second], :, :length] = cache[[second, first], :, :length]

    def _run(self, row: int, ids: Sequence[int], past: int, *, keep: int) -> np.ndarray:
        """Read ids into a row after `past` tokens: logits (keep, V) of the last."""
        binding = self._readers.get(row) or self._readers.setdefault(row, self._new_binding(range(row, row + 1)))
        total = past + len(ids)
        _bind_inputs(
            binding, np.array([ids], np.int64), np.array([total - 1], np.int32), np.array(total, np.int32), keep
        )
        binding.bind_output("logits")
        self._session.run_bound(binding)
        logits: np.ndarray = binding.get_outputs()[0].numpy()[0]
        return logits

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


# Graphs that name their inputs, outputs and caches as Hugging Face's exporters do.

DEFAULT_CONTEXT = 1024  # GPT-2's: few models were trained for less, and beyond that their text degrades
_TOKENS = ("input_ids", "attention_mask", "position_ids", "token_type_ids")  # (B, T), and (B, S) for the mask
_SCALARS = ("use_cache_branch", "num_logits_to_keep", "logits_to_keep")  # () or (1,)
# (B, H, P, D) each, or in older graphs keys and values as one: (2, B, H, P, D)
_PAST = re.compile(r"past_key_values\.\d+\.(key|value)|past_\d+")
_KNOWN = f"{', '.join((*_TOKENS, *_SCALARS))}, past_key_values.0.key and .value ..., or past_0 ..."

NamedArrays = dict[str, np.ndarray]


class GraphCache:
    """A graph with or without a cache. Without one, each call reads all tokens again."""

    def __init__(self, session: Session, context: int | None = None) -> None:
        """Raises ValueError with the input that is not known."""
        self.device, self.num_bytes, self._session = session.device, session.num_bytes, session
        self.context = context or int(session.metadata.get("chatmill.context", DEFAULT_CONTEXT))
        outputs = {node.name: node for node in session.session.get_outputs()}
        pasts = [name for name in session.inputs if _PAST.fullmatch(name)]
        self._presents = {past: re.sub("past(_key_values)?", "present", past) for past in pasts}
        if "input_ids" not in session.inputs or not {"logits", *self._presents.values()} <= outputs.keys():
            wanted, names = ", ".join(["logits", *self._presents.values()]), ", ".join((*session.inputs, *outputs))
            raise ValueError(f"{session.file}: expected an input input_ids and the outputs {wanted}, got {names}")
        if unknown := [name for name in session.inputs if name not in (*pasts, *_TOKENS, *_SCALARS)]:
            raise ValueError(f"{session.file}: input {unknown[0]!r} is not recognised: expected {_KNOWN}")
        self._past = {past: np.zeros(self._empty_shape(past), session.dtypes[past]) for past in pasts}
        self._ids: list[int] = []  # all that were read
        width = outputs["logits"].shape[-1]
        self.vocab_size: int = width if isinstance(width, int) else self._run([0], self._past, 0, keep=1)[0].shape[-1]

    def with_rows(self, rows: int) -> None:
        """A graph reads one sequence at a time."""

    def read(self, row: int, ids: Sequence[int], past: int, *, all_logits: bool = False) -> np.ndarray:
        logits = self._read(ids, past, keep=len(ids) if all_logits else 1)
        if all_logits and len(logits) < len(ids):  # the graph returns those of the last position only
            return np.concatenate([self._read([token], past + i, keep=1) for i, token in enumerate(ids)])
        return logits if all_logits else logits[-1:]

    def _read(self, ids: Sequence[int], length: int, *, keep: int) -> np.ndarray:
        """Read ids after the first `length` tokens: the logits of the last run. Where a run fails, the state stays."""
        sequence = [*self._ids[:length], *ids]
        past = {name: np.ascontiguousarray(past[..., :length, :]) for name, past in self._past.items()}
        start = length if self._presents else 0
        # an export may have traced its cache's branch with one token: after a past, it is given one at a time
        step = 1 if "use_cache_branch" in self._session.inputs and start else len(sequence)
        for first in range(start, len(sequence), step):
            logits, past = self._run(sequence[first : first + step], past, first, keep)
        self._ids, self._past = sequence, past
        return logits

    def _run(self, ids: Sequence[int], past: NamedArrays, first: int, keep: int) -> tuple[np.ndarray, NamedArrays]:
        """Read ids from position `first` on: logits (T, V), or of the last `keep` positions only, and the next past."""
        total, inputs = first + len(ids), self._session.inputs
        tokens = {
            "input_ids": np.array(ids),
            "attention_mask": np.ones(total),
            "position_ids": np.arange(first, total),
            "token_type_ids": np.zeros(len(ids)),
        }
        scalars = {"use_cache_branch": first > 0, "num_logits_to_keep": keep, "logits_to_keep": keep}
        feed = {name: row[None] for name, row in tokens.items() if name in inputs}
        feed |= {name: np.full([1] * len(inputs[name].shape), scalars[name]) for name in _SCALARS if name in inputs}
        outputs = self._session.run(["logits", *self._presents.values()], feed | past)
        for present in self._presents.values():
            if outputs[present].shape[-2] != total:
                found = f"expected a present of {total} tokens, got the shape {outputs[present].shape}"
                raise ValueError(f"{self._session.file}: output {present!r}: {found}")
        logits = outputs["logits"]
        rows = logits.reshape(-1, logits.shape[-1]).astype(np.float32)
        return rows, {name: outputs[present] for name, present in self._presents.items()}

    def _empty_shape(self, past: str) -> list[int]:
        """The shape before the first token, where B = 1 and P = 0."""
        shape = list(self._session.inputs[past].shape)
        if len(shape) not in (4, 5) or not all(isinstance(size, int) for size in (*shape[:-4], shape[-3], shape[-1])):
            expected = "(batch, heads, past, size), with heads and size fixed"
            raise ValueError(f"{self._session.file}: input {past!r} is {shape}: expected {expected}")
        return [*shape[:-4], 1, shape[-3], 0, shape[-1]]
