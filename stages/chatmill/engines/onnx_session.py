"""ONNX Runtime sessions: open a graph on a device, and run it, with errors in one line."""

import ctypes
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state

from chatmill.engines.engine import as_memory_error, default_threads

ERRORS = (
    state.EPFail,
    state.Fail,
    state.InvalidArgument,
    state.InvalidGraph,
    state.InvalidProtobuf,
    state.NoSuchFile,
    state.NotImplemented,
    state.RuntimeException,
    MemoryError,
    RuntimeError,
)
_BFLOAT16 = 16  # its number in ONNX; as NumPy has none, it is represented by the upper half of a float32
_TYPES = {"bfloat16": np.uint16, "double": np.float64, "float": np.float32}
SPIN_OPTIONS = {  # idle threads spin for a millisecond before they sleep, which is 1.3 to 1.8 times as fast
    "allow_spinning": "1",
    "spin_duration_us": "1000",
}


class Session:
    """An open graph. Its inputs and outputs are NumPy arrays."""

    def __init__(self, file: Path, *, threads: int | None = None, device: str = "cpu") -> None:
        """Raises ValueError where ONNX Runtime cannot read the file, or does not have the device."""
        self.file = file
        providers = _providers(device)
        self.num_bytes = sum(part.stat().st_size for part in file.parent.glob(f"{file.name}*"))  # with external data
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
        self.metadata: Mapping[str, str] = self.session.get_modelmeta().custom_metadata_map

    def zeros(self, kind: str, shape: Sequence[int]) -> np.ndarray:
        """Zeros of a type that is named as ONNX Runtime names it."""
        return np.zeros(shape, _dtype(kind))

    def run(
        self, outputs: Sequence[str], feed: Mapping[str, np.ndarray], types: Mapping[str, str]
    ) -> dict[str, np.ndarray]:
        """The outputs by name.

        Raises ValueError in one line where the graph does not run with these tensors, and MemoryError where they are
        too large.
        """
        try:
            values = {name: _to_value(array, types[name]) for name, array in feed.items()}
            results = self.session.run_with_ort_values(outputs, values)
            return {name: _to_array(value) for name, value in zip(outputs, results, strict=True)}
        except ERRORS as error:
            raise self._failure(error) from error

    def run_bound(self, binding: onnxruntime.IOBinding) -> None:
        """Run with the bound inputs and outputs; errors are those of `run`."""
        try:
            self.session.run_with_iobinding(binding)
        except ERRORS as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> Exception:
        failed = ValueError(f"{self.file}: ONNX Runtime cannot run it: {_line(error)}")
        return as_memory_error(error, self.device) or failed


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


def _to_value(array: np.ndarray, kind: str) -> onnxruntime.OrtValue:
    if "bfloat16" not in kind:
        array = np.ascontiguousarray(array, _dtype(kind))
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    if array.dtype != np.uint16:
        array = (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16)


def _to_array(value: onnxruntime.OrtValue) -> np.ndarray:
    if "bfloat16" not in value.data_type():
        array: np.ndarray = value.numpy()
        return array
    raw = (ctypes.c_char * value.tensor_size_in_bytes()).from_address(value.data_ptr())
    return np.frombuffer(raw, np.uint16).reshape(value.shape()).copy()


def _dtype(kind: str) -> np.dtype:
    """The NumPy type of `tensor(float16)`."""
    name = kind.removeprefix("tensor(").removesuffix(")")
    return np.dtype(_TYPES.get(name, name))


def _line(error: Exception) -> str:
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", " ".join(str(error).split()))[:400]
