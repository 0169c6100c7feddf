"""Copies of a run's states in a storage that outlives the machine, at the address in $CHATMILL_CHECKPOINTS.

    <address>/<name of the run>/<number>-<sha256>.safetensors
    <address>/<name of the run>/<number>-<sha256>.complete

The second file is written after the first, so that a state which was not sent to its end is never read. The address is
any that fsspec knows, which is imported only where there is one.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import uuid4

from chatmill.pipeline.settings import setting, variable
from chatmill.pipeline.store import open_address, reason_of
from chatmill.training.state_file import is_state_name, is_whole, state_number

_COMPLETE = ".complete"
_PATIENCE = 60  # seconds for which a storage may be silent before a run begins


def remote_address() -> str:
    """The address of the storage; "" where there is none."""
    return (setting("checkpoints") or "").rstrip("/")


def check_remote() -> None:
    """Raise ValueError if there is an address, and no file can be written and removed there, or there is no answer."""
    if address := remote_address():
        errors: list[BaseException | None] = []
        thread = Thread(target=lambda: errors.append(_error_at(address)), daemon=True)  # some wait for many minutes
        thread.start()
        thread.join(_PATIENCE)
        error = errors[0] if errors else TimeoutError(f"no answer in {_PATIENCE} seconds")
        with _explained(address):
            if error is not None:
                raise error


def _error_at(address: str) -> BaseException | None:
    """Why no file can be written and removed at an address; None where it can."""
    try:
        files, prefix = _open(address)
        probe = f"{prefix}/writable-{uuid4().hex}"
        files.pipe_file(probe, b"")
        files.rm_file(probe)
    except Exception as error:  # each storage has errors of its own
        return error
    return None


class RemoteStates:
    """The states of a run in the storage. Once the run has begun, errors are logged, and it continues."""

    def __init__(self, address: str, name: str, log: Callable[[str], None]) -> None:
        self.address, self.name, self.log = address, name, log
        self.place = self.place_of(name)
        self.failed = False

    def place_of(self, name: str) -> str:
        """The address of the states of a run."""
        return f"{_without_keys(self.address)}/{name}"

    def fetch(self, folder: Path, newest: int) -> None:
        """Download the last state into the folder, whose own newest one has this number, if the last one is newer.

        Raises ValueError where the storage cannot be read: the run would begin anew for nothing.
        """
        with _explained(self.address):
            for name in reversed(self._complete(self._names())):
                if state_number(name) <= newest:
                    return
                folder.mkdir(parents=True, exist_ok=True)
                part = folder / "part"
                self._files.get_file(f"{self._folder}/{name}", str(part))
                if is_whole(part, name):
                    part.replace(folder / name)
                    return
                part.unlink()
                self.log(f"{self.place}/{name} is damaged: the run resumes from the state before it, or from the start")

    def send(self, file: Path, keep: int) -> None:
        """Upload a state, then remove all but the last `keep` of them; an error is logged once until one succeeds."""
        try:
            with suppress(FileExistsError):
                self._files.mkdir(self._folder, create_parents=False)  # would make a bucket whose name is mistyped
            former = self._names()
            self._files.put_file(str(file), f"{self._folder}/{file.name}")
            self._files.pipe_file(f"{self._folder}/{file.stem}{_COMPLETE}", b"")
            kept = {Path(name).stem for name in [*self._complete(former - {file.name}), file.name][-keep:]}
            for name in sorted(name for name in former if Path(name).stem not in kept):  # .complete before the state
                self._files.rm_file(f"{self._folder}/{name}")
        except Exception as error:  # each storage has errors of its own
            if not self.failed:
                self.log(
                    f"{self.place}: {reason_of(error)}: training continues, and the next checkpoint is sent; "
                    "until then another machine would resume from an older state"
                )
            self.failed = True
        else:
            self.failed = False

    def remove(self) -> None:
        """Remove the states of this run, which is done."""
        try:
            if self._names():
                self._files.rm(self._folder, recursive=True)
        except Exception as error:  # each storage has errors of its own
            self.log(f"{self.place}: {reason_of(error)}: remove it yourself, since the run is done")

    def runs(self) -> list[str]:
        """The names of all runs that have states there."""
        with _explained(self.address), suppress(FileNotFoundError):
            return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in self._files.ls(self._prefix, detail=False))
        return []

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        return _open(self.address)

    @property
    def _files(self) -> Any:
        return self._opened[0]

    @property
    def _prefix(self) -> str:
        return self._opened[1]

    @property
    def _folder(self) -> str:
        return f"{self._prefix}/{self.name}"

    def _names(self) -> set[str]:
        """The names of all files of this run."""
        self._files.invalidate_cache()
        return {path.rsplit("/", 1)[-1] for path in self._files.find(self._folder)}

    @staticmethod
    def _complete(names: set[str]) -> list[str]:
        """The names of the states that were sent to their end, the oldest first."""
        states = filter(is_state_name, names)
        return sorted((name for name in states if f"{Path(name).stem}{_COMPLETE}" in names), key=state_number)


def _open(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path there."""
    files, path = open_address(address)
    return files, path.rstrip("/")


@contextmanager
def _explained(address: str) -> Iterator[None]:
    """Raise errors of the storage as a ValueError that names the variable and what to do."""
    place = f"{variable('checkpoints')}: {_without_keys(address)}"
    try:
        yield
    except ImportError as error:
        raise ValueError(f"{place}: {reason_of(error)}: for s3:// that is pip install -e '.[s3]'") from error
    except Exception as error:  # each storage has errors of its own
        expected = "expected a bucket or folder that exists, and keys that may list, write and remove files there"
        raise ValueError(f"{place}: {reason_of(error)}: {expected}") from error


def _without_keys(address: str) -> str:
    """An address without the user and password that it may hold."""
    return re.sub(r"//[^/]*@", "//", address)
