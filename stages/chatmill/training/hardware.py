"""How this machine computes training: the number format, and whether steps are compiled.

To add a number format, add a line to `DTYPES`, its name to `Precision`, and its memory to chatmill/run_display.py. If
`auto` may choose it, extend `choose_precision` and `choose_compile`, too. A format whose smallest numbers are larger
than those of float32 needs loss scaling in `Trainer.step`; `Muon` casts momentum before it normalises.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from chatmill.model.chat_model import ChatModel
from chatmill.pipeline.progress import log
from chatmill.processor import machine_properties, own_processor
from chatmill.training.distributed import DeviceKind, Group
from chatmill.training.train_parameters import Precision, TrainParameters

# Of products; weights, gradients and sums are float32.
DTYPES: dict[Precision, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}

_WORTH_COMPILING = 1e13  # operations per thread, 2.5 minutes: compiling takes 35 s and saves 1/4 to 2/5
_WORTH_COMPILING_ON_GPU = 1e16  # a minute or two


def choose_precision(precision: Literal["auto", Precision], device: DeviceKind = "cpu") -> Precision:
    """The given precision; for `auto` bfloat16 if the GPU has it, or this processor gains by it."""
    if precision != "auto":
        return precision
    if device == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return "bfloat16" if own_processor().gains_by_bfloat16 else "float32"


def autocast(device: str, precision: Precision) -> torch.autocast:
    """A context in which products are computed in a precision."""
    lower = precision != "float32"
    return torch.autocast(device, DTYPES[precision] if lower else torch.bfloat16, enabled=lower)


def choose_compile(
    requested: bool | Literal["auto"], precision: Precision, operations: float, threads: int, device: DeviceKind = "cpu"
) -> bool:
    """The requested value; for `auto`, whether a run of so many operations is long enough to gain by it.

    In float32 only some processors gain by it.
    """
    if requested != "auto":
        return requested
    if precision == "float32" and (device == "cuda" or not own_processor().gains_by_compiled_float32):
        return False
    worth = _WORTH_COMPILING_ON_GPU if device == "cuda" else _WORTH_COMPILING * threads
    return operations > worth and _has_compiler(device)


def _has_compiler(device: DeviceKind) -> bool:
    headers = Path(sysconfig.get_paths()["include"], "Python.h").exists()
    names = ("gcc", "clang", "cc") if device == "cuda" else ("g++", "clang++")
    triton = device == "cpu" or importlib.util.find_spec("triton") is not None
    return headers and triton and any(shutil.which(name) for name in names)


def set_up_compiler() -> None:
    """Have compiled code add in a fixed order, and keep it for later runs on machines of this kind.

    By default, threads add to an embedding's gradient in any order, and code is kept in a folder that a restart
    empties. PyTorch itself tells code for other shapes, versions and settings apart, but not for other processors.
    """
    kind = hashlib.sha256(json.dumps(machine_properties()).encode()).hexdigest()[:16]
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(caches, "chatmill", "compiled", kind)
    with suppress(OSError):  # where it cannot be written, PyTorch's own folder is used
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # takes time for nothing here


class HardwareSettings(NamedTuple):
    """The settings that `auto` stands for on this machine."""

    device: DeviceKind
    precision: Precision
    compile: bool


def choose_hardware(
    parameters: TrainParameters, device: DeviceKind, model: ChatModel, tokens: int, group: Group
) -> HardwareSettings:
    """The device, precision and compilation to train on so many tokens with; logged where a parameter is `auto`."""
    precision = choose_precision(parameters.precision, device)
    operations = 6 * sum(weight.numel() for weight in model.parameters()) * tokens
    compiled = choose_compile(parameters.compile, precision, operations / group.size, parameters.threads, device)
    if group.is_main_process and "auto" in (parameters.device, parameters.precision, parameters.compile):
        settings = f"{device}, {precision}, {'' if compiled else 'not '}compiled"
        warning = "on other hardware, weights differ from those of dvc.lock"
        log("train_model", f"chosen for this hardware: {settings}; {warning}")
    return HardwareSettings(device, precision, compiled)
