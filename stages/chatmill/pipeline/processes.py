"""How the processes of a stage end, and where they find their code."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE_ROOT = str(Path(__file__).resolve().parents[2])  # the folder of the scripts and of the package
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """End this process when its parent ends, also when it is already gone: an orphan would write beside its successor.

    Every process that a stage starts calls this first.
    """
    parent = os.getppid()
    if not sys.platform.startswith("linux"):
        _watch_parent(parent)
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _watch_parent(parent: int) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            threading.Event().wait(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def hide_scripts() -> None:
    """Take the folder of the scripts off the path, so that none of them stands for a library, such as `evaluate`.

    The modules of the package are found all the same: it is imported, and knows its own folder.
    """
    sys.path[:] = _path_without_scripts()


@contextmanager
def scripts_on_path() -> Iterator[None]:
    """Let processes that are started meanwhile find the scripts and the package: they inherit the path."""
    before = sys.path[:]
    sys.path[:] = [SOURCE_ROOT, *_path_without_scripts()]
    try:
        yield
    finally:
        sys.path[:] = before


def _path_without_scripts() -> list[str]:
    """The path without the folder of the scripts, in whatever way that is written."""
    return [folder for folder in sys.path if not folder or Path(folder).resolve() != Path(SOURCE_ROOT)]
