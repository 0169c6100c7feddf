"""Atomic outputs: a file or folder is complete when its stage ends, or absent, and one process at a time writes it."""

import errno
import fcntl
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chatmill.pipeline.processes import is_alive

SCRATCH = ".cache"  # ignored by git and by DVC in any folder
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # full disk, quota, limit on the size of files


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
def atomic_output(output: Path, *, grows: bool = False) -> Iterator[Path]:
    """A temporary path for a file or folder; it is renamed to `output` on success, and removed on an error.

    A file that `grows` has both names from the start, so that others can read it while it is written, except on file
    systems without hard links. What a killed process leaves of it is removed by the next stage that writes beside it.
    """
    scratch = output.parent / SCRATCH
    _remove_stale(scratch)
    folder = scratch / str(os.getpid())
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / output.name
    try:
        if grows:  # an empty file with both names
            output.unlink(missing_ok=True)
            place.touch()
            with suppress(OSError):
                output.hardlink_to(place)
        yield place
        if not place.exists():
            raise ValueError(f"{output} was not written")
        if output.is_dir() and not output.is_symlink():
            shutil.rmtree(output)
        elif place.is_dir():
            output.unlink(missing_ok=True)
        place.replace(output)  # which leaves both names if they are of one file
        place.unlink(missing_ok=True)
    finally:
        _discard(place)
        for empty in (folder, scratch):
            if empty.exists() and not any(empty.iterdir()):
                empty.rmdir()


@contextmanager
def explain_full_disk(outputs: Collection[Path]) -> Iterator[None]:
    """Name the file, or the outputs if the error names none, and the free space in the error of a full disk."""
    try:
        yield
    except (OSError, ValueError) as error:
        number = _full_disk_number(error)
        if number is None:
            raise
        named = (error.filename2 or error.filename) if isinstance(error, OSError) else None  # the second is a copy
        place = named or ", ".join(map(str, outputs))
        free = shutil.disk_usage(next(iter(outputs)).absolute().parent).free
        problem = f"{os.strerror(number)}: {free:,} bytes are free now: free more space, and run the stage again"
        raise OSError(number, problem, str(place)) from error


def _full_disk_number(error: OSError | ValueError) -> int | None:
    """The number of an error that says that no more can be written; None for any other error."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return error.errno
    if " requested and " in str(error):  # of numpy, without a number
        return errno.ENOSPC
    found = re.search(r"\(os error (\d+)\)", str(error))  # of libraries written in Rust
    return int(found[1]) if found and int(found[1]) in _FULL else None


def _discard(place: Path) -> None:
    """Remove what was written of an output, also under the name of the output if it has both."""
    with suppress(FileNotFoundError):
        output = place.parents[2] / place.name
        if place.samefile(output):
            output.unlink()
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def discard_scratch(folder: Path) -> None:
    """Remove the folder of a process that has ended, and what it wrote of its outputs."""
    for place in folder.iterdir():
        _discard(place)
    folder.rmdir()


def _remove_stale(scratch: Path) -> None:
    if not scratch.is_dir():
        return
    for folder in scratch.iterdir():
        with suppress(OSError):  # another stage may do the same
            if folder.name.isdigit() and not is_alive(int(folder.name), folder.stat().st_mtime):
                discard_scratch(folder)


def format_size(num_bytes: int) -> str:
    """A number of bytes: 812 bytes, 7.2 MB, 15.1 GB."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} bytes"
