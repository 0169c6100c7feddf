"""Atomic outputs: a file or folder appears complete or not at all, and one process at a time writes it."""

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SCRATCH = ".cache"  # ignored by git and by DVC in any folder


@contextmanager
def stage_lock(name: str, outputs: list[Path]) -> Iterator[None]:
    """Hold the lock of a stage with these outputs; wait for another run that holds it."""
    file = Path(SCRATCH, "locks", "-".join([name, *(output.stem for output in outputs[:1])]))
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{name}: waiting for another run of this stage", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def atomic_output(output: Path) -> Iterator[Path]:
    """A temporary path for a file or folder; it is renamed to `output` on success, and removed on an error."""
    scratch = output.parent / SCRATCH
    _remove_stale(scratch)
    folder = scratch / str(os.getpid())
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / output.name
    try:
        yield place
        if not place.exists():
            raise ValueError(f"{output} was not written")
        if output.is_dir() and not output.is_symlink():
            shutil.rmtree(output)
        place.replace(output)
    finally:
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
        for empty in (folder, scratch):
            if empty.exists() and not any(empty.iterdir()):
                empty.rmdir()


def _remove_stale(scratch: Path) -> None:
    """Remove the folders of processes that no longer run."""
    if not scratch.is_dir():
        return
    for folder in scratch.iterdir():
        if folder.name.isdigit() and not _alive(int(folder.name)):
            shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
