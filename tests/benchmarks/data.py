"""How fast prepare and mix are, and how much memory they take at ten times the data.

    python tests/benchmarks/data.py FILE [FORMAT]

FILE holds JSON lines, in FORMAT (default: dolly). The copies in the larger file differ in the first text of each
row, so that none is a duplicate. MB/s is of raw text: by wall-clock time, and per core, by the CPU time of all
processes. The peak is that of the largest process. Rows of dolly are also read as a table from other containers, those
of Parquet and Arrow in groups of up to 64 MB; "rows" is the reading of rows alone, without what is made of them.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

STAGES = Path(__file__).parents[2] / "stages"
COPIES = (1, 10)
PARAMS = """\
prepare: {{chats: {}}}
mix: {{validation_share: 0.05, test_share: 0.05, near_duplicates: {}}}
"""
COLUMNS = "{prompt: instruction, query: context, response: response}"
CONTAINERS = ("chats.json", "chats.csv", "chats.parquet", "chats.arrow")
GROUP_BYTES = 64_000_000
SPAWN = multiprocessing.get_context("spawn")
COMMANDS = {
    "prepare": "prepared/chats.jsonl prepared/chats.rejects.jsonl prepared/chats.manifest.json",
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


def write_container(lines: Path, out: Path) -> None:
    """Write the rows of JSON lines to a container, by its name."""
    import pyarrow
    from pyarrow import csv, ipc, parquet

    rows = [json.loads(line) for line in lines.open(encoding="utf-8")]
    if out.suffix == ".json":
        out.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
        return
    table = pyarrow.Table.from_pylist(rows)
    group = max(1, int(len(rows) * GROUP_BYTES / table.nbytes))
    if out.suffix == ".csv":
        csv.write_csv(table, out)
    elif out.suffix == ".parquet":
        parquet.write_table(table, out, row_group_size=group)
    else:
        with ipc.new_file(out, table.schema) as writer:
            writer.write_table(table, max_chunksize=group)


ONE_PROCESS = """
import runpy, sys; from chatmill.datasets import records as conversation_files
conversation_files.LARGE_BYTES = 1 << 60; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name="__main__")
"""
READ_ROWS = """
import sys; from pathlib import Path; from chatmill.datasets.formats.containers import rows_of
for row in rows_of(Path(sys.argv[1])): pass
"""


class Measured(NamedTuple):
    """What a command took."""

    clock: float  # seconds
    processor: float  # seconds of all processes
    peak: float  # MB of the largest process
    first: float  # seconds of CPU time of the first process


def run(stage: str, folder: Path) -> Measured:
    """What a stage takes."""
    return measure([str(STAGES / f"{stage}.py"), *COMMANDS[stage].split()], folder)


def measure(command: list[str], folder: Path, **environment: str) -> Measured:
    """What any Python command takes, with variables of the environment."""
    start = time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(STAGES)} | environment
    process = subprocess.Popen([sys.executable, *command], cwd=folder, env=environment)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    clock = time.perf_counter() - start
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()  # from the third on, see proc(5)
    first = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{command[0]} failed")
    return Measured(clock, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, first)


def main(file: Path, name: str = "dolly") -> None:
    """Print one line for each stage, container and size."""
    print(f"{'stage':24}{'MB':>8}{'MB/s':>8}{'MB/s per core':>15}{'peak MB':>10}")
    for copies in COPIES:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            size = write_copies(file, copies, folder / "chats.jsonl")
            for stage, near in (("prepare", "false"), ("mix", "false"), ("mix", "true")):
                section = f"{{path: chats.jsonl, format: {name}}}"
                (folder / "params.yaml").write_text(PARAMS.format(section, near))
                show(f"{stage}{', near-duplicates' * (near == 'true')}", size, run(stage, folder))
                if stage == "prepare":
                    command = ["-c", ONE_PROCESS, str(STAGES / "prepare.py"), *COMMANDS[stage].split()]
                    show("prepare, one process", size, measure(command, folder))
            for container in CONTAINERS if name == "dolly" else ():
                write = SPAWN.Process(target=write_container, args=(folder / "chats.jsonl", folder / container))
                write.start()  # in a process of its own, as a stage's peak begins with the memory of this one
                write.join()
                section = f"{{path: {container}, format: table, columns: {COLUMNS}}}"
                (folder / "params.yaml").write_text(PARAMS.format(section, "false"))
                show(f"prepare {Path(container).suffix}", size, run("prepare", folder))
                show(f"rows {Path(container).suffix}", size, measure(["-c", READ_ROWS, container], folder))


def show(name: str, size: float, took: Measured) -> None:
    """Print one line."""
    speeds = f"{size / took.clock:8.1f}{size / took.processor:15.1f}"
    print(f"{name:24}{size:8.1f}{speeds}{took.peak:10.0f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
