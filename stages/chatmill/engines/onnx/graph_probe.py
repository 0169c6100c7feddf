"""Tries whether an external graph can be opened and run, in a process with limited time and memory.

A file of 1 KB whose functions call each other twice takes hours to open.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from chatmill.engines.onnx.graph_engine import GraphEngine
from chatmill.engines.onnx.session import Session, graph_files
from chatmill.pipeline.processes import SOURCE_ROOT

if sys.platform != "win32":  # Windows has no such limits
    import resource

SECONDS = 20  # of processor time, and one more for each 20 MB
MEMORY = 4 << 30  # bytes of address space, and eight more for each byte of the graph
_NO_MEMORY = ("bad_alloc", "Failed to allocate", "MemoryError")


def probe(file: Path) -> None:
    """Raise ValueError where opening a graph and reading one token fails, or takes more than the limits."""
    num_bytes = sum(part.stat().st_size for part in graph_files(file))
    seconds, memory = SECONDS + num_bytes // 20_000_000, MEMORY + 8 * num_bytes
    command = [sys.executable, "-m", __name__, str(file), str(seconds), str(memory)]
    environment = os.environ | {"PYTHONPATH": SOURCE_ROOT}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode == -getattr(signal, "SIGXCPU", 0):
        raise ValueError(f"{file}: opening it takes more than the limit of {seconds} s of CPU time")
    if result.returncode < 0 or any(words in result.stderr for words in _NO_MEMORY):
        raise ValueError(f"{file}: opening it takes more than the limit of {memory >> 20} MB of memory, or crashes")
    if result.returncode:
        raise ValueError(result.stderr.strip())


def probe_under_limits(file: str, seconds: str, memory: str) -> None:
    """Open a graph and read one token under limits; exit with the error, if any."""
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 1))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    try:
        GraphEngine(Session(Path(file), threads=1), "probe").append([0])
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    probe_under_limits(*sys.argv[1:])
