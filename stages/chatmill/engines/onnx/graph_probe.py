"""Tries whether an external graph can be opened and run, in a process with limited time and memory.

A file of 1 KB whose functions call each other twice takes hours to open.
"""

import os
import subprocess
import sys
from pathlib import Path

from chatmill.engines.onnx.graph_engine import GraphEngine
from chatmill.engines.onnx.session import Session, graph_files
from chatmill.pipeline.processes import SOURCE_ROOT, die_with_parent

if sys.platform != "win32":  # Windows has no such limits
    import resource

SECONDS, MAX_SECONDS = 10, 60  # one more for each 50 MB
MEMORY = 512 << 20  # bytes beyond those of a process with the libraries, and four more for each byte of the graph
_NO_MEMORY = ("bad_alloc", "Failed to allocate", "MemoryError")


def probe(file: Path) -> None:
    """Raise ValueError where opening a graph and reading one token fails, or takes more than the limits."""
    num_bytes = sum(part.stat().st_size for part in graph_files(file))
    seconds, memory = min(SECONDS + num_bytes // 50_000_000, MAX_SECONDS), MEMORY + 4 * num_bytes
    command = [sys.executable, "-m", __name__, str(file), str(seconds), str(memory)]
    environment = os.environ | {"PYTHONPATH": SOURCE_ROOT}
    try:
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=seconds, errors="replace"
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"{file}: opening it and reading a token takes more than the limit of {seconds} s") from error
    if result.returncode < 0 or any(words in result.stderr for words in _NO_MEMORY):
        raise ValueError(f"{file}: opening it takes more than the limit of {memory >> 20} MB of memory, or crashes")
    if result.returncode:
        *_, last = result.stderr.splitlines() or [""]
        raise ValueError(last if last.startswith(str(file)) else f"{file}: it cannot be opened and run: {last:.400}")


def probe_under_limits(file: str, seconds: str, memory: str) -> None:
    """Open a graph and read one token under limits; exit with the error, if any."""
    die_with_parent()
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 1))
    if sys.platform == "linux":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit = min(used + int(memory), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        GraphEngine(Session(Path(file), threads=1), "probe").append([0])
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    probe_under_limits(*sys.argv[1:])
