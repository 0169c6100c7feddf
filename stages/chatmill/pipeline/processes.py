"""Errors of users in one line, the end of a stage's processes, and the path on which they find their code."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Errors that a user or the machine's limits can cause: each is reported as one line, without a traceback.

USER_ERRORS = (OSError, ValueError, MemoryError)


def error_line(error: OSError | ValueError | MemoryError) -> str:
    """The message of an error as one line; that of an OSError begins with its file."""
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename is not None else ""
        return f"{place}{error.strerror.lower()}"
    return " ".join(str(error).split()) or "out of memory"


# The end of a stage's processes, and the path on which they find their code.

SOURCE_ROOT = str(Path(__file__).resolve().parents[2])  # the folder of the scripts and the package
_PR_SET_PDEATHSIG = 1
_CLOCK_STEP = 1  # seconds by which the start of a process is uncertain


def die_with_parent() -> None:
    """End this process when its parent ends, since an orphan would write the same files as the next run.

    Each process that a stage starts calls this first. It also ends if the parent has already ended.
    """
    parent = os.getppid()
    if not sys.platform.startswith("linux"):
        _watch_parent(parent)
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _watch_parent(parent: int) -> None:
    """End this process soon after its parent, where the system has no call for that (other than Linux)."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def is_alive(pid: int, since: float) -> bool:
    """Whether the process that left a file at this time still runs; a later one may have its number."""
    try:
        os.kill(pid, 0)
        process = Path(f"/proc/{pid}")
        if not process.exists():
            return not Path("/proc/self").exists()  # it has just ended, or this system does not tell more
        is_zombie = process.joinpath("stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
        return not is_zombie and process.stat().st_ctime <= since + _CLOCK_STEP
    except PermissionError:
        return True
    except OSError:
        return False


def hide_scripts() -> None:
    """Remove the folder of the scripts from sys.path, so that none of them hides a library, such as `evaluate`.

    Modules of the package are still found, since the imported package knows its own folder.
    """
    sys.path[:] = _path_without_scripts()


@contextmanager
def scripts_on_path() -> Iterator[None]:
    """Put the scripts and the package on sys.path, which processes started in the block inherit."""
    before = sys.path[:]
    sys.path[:] = [SOURCE_ROOT, *_path_without_scripts()]
    try:
        yield
    finally:
        sys.path[:] = before


def _path_without_scripts() -> list[str]:
    return [folder for folder in sys.path if not folder or Path(folder).resolve() != Path(SOURCE_ROOT)]
