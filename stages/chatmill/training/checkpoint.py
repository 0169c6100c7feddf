"""A file with the state of a run: its name tells the order of states, and whether the content is whole.

    <number>-<sha256 of the file>.safetensors

Its tensors are written one by one and mapped when they are read, so that no process holds all of them. What else is in
the state, with an empty tensor in place of each, is in the metadata.
"""

import hashlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from chatmill.pipeline.outputs import SCRATCH
from chatmill.pipeline.progress import log
from chatmill.processor import machine_properties
from chatmill.training.state_file import (
    SUFFIX,
    is_state_name,
    is_whole,
    read_state,
    state_name,
    state_number,
    tensors_of,
    write_state,
)

# Checkpoints from which a killed run resumes: the same parameters, inputs, code and machine give the same folder.

PARTS = ("parameters", "data", "code", "machine")  # of a fingerprint
SIGTERM_EXIT_CODE = 128 + signal.SIGTERM  # the exit code of a process that SIGTERM stopped
_MAX_TO_KEEP = 2
_MAX_AGE = 7 * 24 * 3600  # seconds since a run's last save, after which it is not expected to resume
default_log = partial(log, "checkpoint")  # for states that no stage saves


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

    def __init__(self, name: str, log: Callable[[str], None] = default_log) -> None:
        self.folder = Path(os.environ.get("DVC_ROOT", "."), SCRATCH, "resume", name)
        self.log = log
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
            file = self.folder / state_name(self._newest() + 1, sha256)
            part.replace(file)
            _flush(self.folder)
            for former in files[: 1 - _MAX_TO_KEEP]:
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
        for file in reversed(self._files()):
            if is_whole(file, file.name):
                return read_state(file)
            file.unlink(missing_ok=True)
            self.log(f"{file} is damaged: the run resumes from the state before it, or from the start")
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
                self.log(f"{place} is not resumed, since {reason}: training starts from the beginning")

    def _files(self) -> list[Path]:
        """The files of the states, the oldest first."""
        files = (file for file in self.folder.glob(f"*{SUFFIX}") if is_state_name(file.name))
        return sorted(files, key=lambda file: state_number(file.name))

    def _newest(self) -> int:
        """The number of the last state; 0 where there is none."""
        return max((state_number(file.name) for file in self._files()), default=0)

    def _log_once(self, error: OSError) -> None:
        if not self.failed:
            reason = str(error.strerror or error)
            reason = reason[:1].lower() + reason[1:]
            self.log(f"{self.folder}: {reason}: training continues, but a killed run would resume from an older state")
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
