"""Checkpoints from which a killed run resumes, and the files of their states.

The name of a state tells the order of states, and whether the content is whole:

    <number>-<sha256 of the file>.safetensors

Its tensors are written one by one and mapped when they are read, so that no process holds all of them. What else is in
the state, with an empty tensor in place of each, is in the metadata.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO, FileIO
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from chatmill.pipeline.outputs import SCRATCH
from chatmill.pipeline.progress import log
from chatmill.processor import machine_properties

# A file with the state of a run: its name tells the order of states, and whether the content is whole.

_NAME = re.compile(r"(\d+)-([0-9a-f]{64})\.safetensors")
_OUTLINE = "state"  # of the metadata
_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def tensors_of(state: Any) -> list[Tensor]:
    """The tensors of a state in the order of the file: those of wide numbers first, which need to be aligned."""
    return [tensor for _, tensor in _numbered(state)]


def write_state(state: Any, tensors: Iterable[Tensor], place: Path) -> str:
    """Write a state and return the sha256 of the file. Raises OSError where there is no space for it.

    `tensors` are those of `tensors_of`, whole and on the CPU: the state's own may be sharded.
    """
    with place.open("wb", buffering=0) as file:
        digested = _HashingWriter(file)
        digested.write(_header(state))
        for tensor in tensors:
            digested.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        if digested.error:
            reason = f"{digested.error.strerror} for a state of {digested.size / 1e6:,.1f} MB"
            raise OSError(digested.error.errno, reason)
        os.fsync(file.fileno())
    return digested.digest.hexdigest()


def read_state(file: Path) -> Any:
    """The state in a file, whose tensors are mapped from it; no code of it is run."""
    with safe_open(file, "pt") as content:
        outline = torch.load(BytesIO(b64decode(content.metadata()[_OUTLINE])), weights_only=True)
        names = map(str, range(len(content.keys())))
        return tree_map_only(Tensor, lambda _: content.get_tensor(next(names)), outline)


def _numbered(state: Any) -> list[tuple[int, Tensor]]:
    tensors = enumerate(leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor))
    return sorted(tensors, key=lambda numbered: -numbered[1].element_size())


def _header(state: Any) -> bytes:
    """The beginning of the file: where each tensor is, by its number in the state, and the outline."""
    outline, end = BytesIO(), 0
    torch.save(tree_map_only(Tensor, lambda _: torch.empty(0), state), outline)
    header: dict[str, Any] = {"__metadata__": {_OUTLINE: b64encode(outline.getvalue()).decode()}}
    for number, tensor in _numbered(state):
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[str(number)] = {"dtype": _TYPES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [start, end]}
    content = json.dumps(header).encode()
    content += b" " * (-len(content) % 8)
    return len(content).to_bytes(8, "little") + content


class _HashingWriter:
    """A file that is hashed as it is written; after an OSError, which it stores, it counts bytes alone."""

    def __init__(self, file: FileIO) -> None:
        self.file, self.digest, self.size = file, hashlib.sha256(), 0
        self.error: OSError | None = None

    def write(self, content: bytes | memoryview) -> None:
        rest = memoryview(content)
        self.size += rest.nbytes
        self.digest.update(rest)
        try:
            while rest and self.error is None:
                rest = rest[self.file.write(rest) :]
        except OSError as error:
            self.error = error


# Checkpoints from which a killed run resumes: the same parameters, inputs, code and machine give the same folder.

PARTS = ("parameters", "data", "code", "machine")  # of a fingerprint
SIGTERM_EXIT_CODE = 128 + signal.SIGTERM  # the exit code of a process that SIGTERM stopped
_MAX_TO_KEEP = 2
_MAX_AGE = 7 * 24 * 3600  # seconds since a run's last save, after which it is not expected to resume


def run_fingerprint(parameters: dict[str, Any], inputs: Iterable[Path]) -> str:
    """Hashes of all that determines a run's result: parameters, input files, loaded code and the kind of machine."""
    loaded = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    code = sorted({file for name, file in loaded.items() if file and name.split(".")[0] in ("__main__", "chatmill")})
    data, source = ([_sha256(file.read_bytes()) for file in files] for files in (inputs, map(Path, code)))
    parts = (json.dumps(part, sort_keys=True).encode() for part in (parameters, data, source, machine_properties()))
    return "-".join(_sha256(part)[:16] for part in parts)


def changed_parts(fingerprint: str, other: str) -> list[str]:
    """The parts, of PARTS, in which two fingerprints differ."""
    pairs = zip(fingerprint.split("-"), other.split("-"), strict=False)
    return [name for name, (part, of_other) in zip(PARTS, pairs, strict=False) if part != of_other]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Checkpoint:
    """The states of a run on disk, in the project's scratch folder, which git and DVC ignore.

    Errors are logged in a sentence, and the run continues.
    """

    def __init__(self, name: str) -> None:
        self.folder = Path(os.environ.get("DVC_ROOT", "."), SCRATCH, "resume", name)
        self.failed = False

    def save(self, state: Any, tensors: Iterable[Tensor] | None = None) -> bool:
        """Write a state; return whether it is complete on disk. If the process is killed, the former ones remain.

        `tensors` are those of `tensors_of`, whole; None where the state's own are.
        """
        part = self.folder / "part"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            sha256 = write_state(state, tensors_of(state) if tensors is None else tensors, part)
            files = self._files()
            part.replace(self.folder / f"{max(files, default=0) + 1}-{sha256}.safetensors")
            _flush(self.folder)
            for former in [*files.values()][: 1 - _MAX_TO_KEEP]:
                former.unlink(missing_ok=True)
        except OSError as error:
            self._log_once(error)
            with suppress(OSError):
                part.unlink()
            return False
        self.failed = False
        return True

    def load(self) -> Any | None:
        """The last undamaged state, whose tensors are mapped from its file; None where there is none."""
        for file in reversed(self._files().values()):
            with file.open("rb") as stream:
                is_whole = hashlib.file_digest(stream, "sha256").hexdigest() == file.stem.split("-")[1]
            if is_whole:
                return read_state(file)
            file.unlink(missing_ok=True)
            log("train_model", f"{file} is damaged: the run resumes from the state before it, or from the start")
        self._log_unusable()
        return None

    def remove(self) -> None:
        """Remove the states of this run, which is done, and of runs that were abandoned."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # another run may do the same, or still need the folder
            for folder in self.folder.parent.iterdir():
                if folder.stat().st_mtime < time.time() - _MAX_AGE:
                    shutil.rmtree(folder, ignore_errors=True)
            self.folder.parent.rmdir()

    def _log_unusable(self) -> None:
        """Log the states of runs with the same parameters that this run cannot resume, and why."""
        for place in sorted(self.folder.parent.glob("*-*/")):
            changed = changed_parts(self.folder.name, place.name)
            if changed and changed[0] != "parameters":
                reason = f"the {' and the '.join(changed)} changed after it was killed"
                log("train_model", f"{place} is not resumed, since {reason}: training starts from the beginning")

    def _files(self) -> dict[int, Path]:
        """The states by their numbers, the oldest first."""
        found = ((_NAME.fullmatch(file.name), file) for file in self.folder.glob("*"))
        return dict(sorted((int(name[1]), file) for name, file in found if name))

    def _log_once(self, error: OSError) -> None:
        if not self.failed:
            reason = str(error.strerror or error)
            reason = reason[:1].lower() + reason[1:]
            log(
                "train_model",
                f"{self.folder}: {reason}: training continues, but a killed run would resume from an older state",
            )
        self.failed = True


def _flush(folder: Path) -> None:
    """Write the names in a folder to disk, so that they survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def catch_sigterm() -> Iterator[threading.Event]:
    """An event that is set by SIGTERM, so that a step can be finished and saved; a second one ends the process."""
    stop_requested = threading.Event()

    def request_stop(*_: Any) -> None:
        signal.signal(signal.SIGTERM, former)
        stop_requested.set()

    former = signal.signal(signal.SIGTERM, request_stop)
    try:
        yield stop_requested
    finally:
        signal.signal(signal.SIGTERM, former)
