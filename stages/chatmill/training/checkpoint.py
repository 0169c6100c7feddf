"""Checkpoints from which a killed run resumes: the same parameters, inputs, code and machine give the same folder.

A state is a file of torch.save, whose name tells the order of states, and whether the content is whole:

    <number>-<sha256 of the file>.pt
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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from chatmill.pipeline.outputs import SCRATCH
from chatmill.pipeline.progress import log
from chatmill.processor import machine_properties

PARTS = ("parameters", "data", "code", "machine")  # of a fingerprint
SIGTERM_EXIT_CODE = 128 + signal.SIGTERM  # the exit code of a process that SIGTERM stopped
_NAME = re.compile(r"(\d+)-([0-9a-f]{64})\.pt")  # of a state
_MAX_TO_KEEP = 2
_MAX_AGE = 7 * 24 * 3600  # seconds since a run's last save, after which it is not expected to resume


def run_fingerprint(parameters: dict[str, Any], inputs: Iterable[Path]) -> str:
    """Hashes of all that determines a run's result: parameters, input files, loaded code and the kind of machine."""
    loaded = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    code = sorted({file for name, file in loaded.items() if file and name.split(".")[0] in ("__main__", "chatmill")})
    data, source = ([_sha256_of(file) for file in files] for files in (inputs, map(Path, code)))
    parts = (json.dumps(part, sort_keys=True).encode() for part in (parameters, data, source, machine_properties()))
    return "-".join(hashlib.sha256(part).hexdigest()[:16] for part in parts)


def changed_parts(fingerprint: str, other: str) -> list[str]:
    """The parts, of PARTS, in which two fingerprints differ."""
    pairs = zip(fingerprint.split("-"), other.split("-"), strict=False)
    return [name for name, (part, of_other) in zip(PARTS, pairs, strict=False) if part != of_other]


def _sha256_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class Checkpoint:
    """The states of a run on disk, in the project's scratch folder, which git and DVC ignore.

    Errors are logged in a sentence, and the run continues.
    """

    def __init__(self, name: str) -> None:
        self.folder = Path(os.environ.get("DVC_ROOT", "."), SCRATCH, "resume", name)
        self.failed = False

    def save(self, state: Any) -> bool:
        """Write a state; return whether it is complete on disk. If the process is killed, the former ones remain."""
        part = self.folder / "part"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            files = self._files()
            part.replace(self.folder / f"{max(files, default=0) + 1}-{_sha256_of(part)}.pt")
            _sync_names(self.folder)
            for former in [*files.values()][: 1 - _MAX_TO_KEEP]:
                former.unlink(missing_ok=True)
        except (OSError, RuntimeError) as error:
            cause = error.__context__ if isinstance(error, RuntimeError) else error  # torch.save raises it afterwards
            if not isinstance(cause, OSError):
                raise
            self._log_once(cause)
            with suppress(OSError):
                part.unlink()
            return False
        self.failed = False
        return True

    def load(self) -> Any | None:
        """The last undamaged state, whose tensors are mapped from its file; None where there is none.

        No code in the file is run.
        """
        for file in reversed(self._files().values()):
            if _sha256_of(file) == file.stem.split("-")[1]:
                return torch.load(file, "cpu", weights_only=True, mmap=True)
            file.unlink(missing_ok=True)
            log("train_model", f"{file} is damaged: the run resumes from the state before it, or from the start")
        self._log_unusable()
        return None

    def remove(self) -> None:
        """Remove the states of this run, which is done, and of runs that were abandoned."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # another run may remove the same, or have its state in the folder, which then stays
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
            consequence = "training continues, but a killed run would resume from an older state"
            log("train_model", f"{self.folder}: {str(error.strerror).lower()}: {consequence}")
        self.failed = True


def _sync_names(folder: Path) -> None:
    """Write the names in a folder to disk: after a power cut the last state must be there, as former ones are not."""
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
