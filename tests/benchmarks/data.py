"""How fast prepare and mix are, and how much memory they take at ten times the data.

    python tests/benchmarks/data.py FILE [FORMAT]

FILE holds JSON lines, in FORMAT (default: dolly). The copies in the larger file differ in the first text of each
row, so that none is a duplicate. MB/s is of raw text: by wall-clock time, and per core, by the CPU time of all
processes. The peak is that of the largest process.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STAGES = Path(__file__).parents[2] / "stages"
COPIES = (1, 10)
PARAMS = """\
prepare: {{chats: {{path: chats.jsonl, format: {}}}}}
mix: {{validation_share: 0.05, test_share: 0.05, near_duplicates: false}}
"""
COMMANDS = {
    "prepare": "--path chats.jsonl --conversations prepared/chats.jsonl --rejects prepared/chats.rejects.jsonl "
    "--manifest prepared/chats.manifest.json",
    "mix": "--prepared prepared --train chat/train.jsonl --validation chat/validation.jsonl --test chat/test.jsonl "
    "--manifest chat/manifest.json --metrics metrics/mix.json",
}


def write_copies(file: Path, copies: int, out: Path) -> float:
    """Write distinct copies of a file; return their size in MB."""
    with out.open("w", encoding="utf-8") as target:
        for copy in range(copies):
            with file.open(encoding="utf-8") as lines:
                for line in lines:
                    row = json.loads(line)
                    key = next(key for key, value in row.items() if isinstance(value, str))
                    row[key] += f" {copy}" * bool(copy)
                    target.write(json.dumps(row, ensure_ascii=False) + "\n")
    return out.stat().st_size / 1e6


def run(stage: str, folder: Path) -> tuple[float, float, float]:
    """Seconds of wall-clock time, seconds of CPU time, and MB of the largest process."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, STAGES / f"{stage}.py", *COMMANDS[stage].split()], cwd=folder)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{stage} failed")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main(file: Path, name: str = "dolly") -> None:
    """Print one line for each stage and size, and one for both stages together."""
    print(f"{'stage':10}{'MB':>8}{'MB/s':>8}{'MB/s per core':>15}{'peak MB':>10}")
    for copies in COPIES:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            (folder / "params.yaml").write_text(PARAMS.format(name))
            size = write_copies(file, copies, folder / "chats.jsonl")
            results = {stage: run(stage, folder) for stage in COMMANDS}
        clock, processor, peak = zip(*results.values(), strict=True)
        for stage, (a, b, c) in (results | {"both": (sum(clock), sum(processor), max(peak))}).items():
            print(f"{stage:10}{size:8.1f}{size / a:8.1f}{size / b:15.1f}{c:10.0f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
