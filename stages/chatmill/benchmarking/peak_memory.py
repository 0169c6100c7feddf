"""The peak memory of a chat with one engine, measured in a process of its own."""

import resource
import subprocess
import sys
from pathlib import Path

from chatmill.inference.model_loading import load_engine
from chatmill.pipeline.processes import SOURCE_ROOT, die_with_parent

NEW_TOKENS = 8
STATUS = Path("/proc/self/status")


def peak_memory_mb(folder: Path, engine: str, *, prompt_tokens: int, threads: int) -> float:
    """The peak memory, in 10^6 bytes, of a process that opens the engine and reads a prompt."""
    arguments = [folder, engine, prompt_tokens, threads]
    command = [sys.executable, "-m", __name__, *map(str, arguments)]
    environment = {"PYTHONPATH": SOURCE_ROOT}
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return int(result.stdout) / 1e6


def main(folder: str, engine: str, prompt_tokens: str, threads: str) -> None:
    """Read a prompt and some tokens after it, and print the peak memory of this process in bytes."""
    die_with_parent()
    loaded = load_engine(Path(folder), engine, device="cpu", threads=int(threads))
    loaded.append([0] * int(prompt_tokens))
    for _ in range(NEW_TOKENS):
        loaded.append([0])
    print(peak_bytes())


def peak_bytes() -> int:
    """The peak memory of this process."""
    if STATUS.exists():  # getrusage includes the parent's peak
        return 1024 * next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


if __name__ == "__main__":
    main(*sys.argv[1:])
