"""The default run with several seeds: how far its figures differ by chance, and how its chats hold.

    python tests/benchmarks/seeds.py [--seeds N …] [--questions N] [--tokens N …]

Each seed is an experiment of DVC, seed-N, which runs unless it ran on this commit before, five minutes each
(`dvc exp run --temp --name seed-N -S train_model.seed=N`). A line has a figure of the test set in each run, their mean
and, in brackets, the least and the greatest bound of their intervals of 95 %. Right answers and recalled names after
other talk follow, of each run (long_chats.py).
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).parents[2]
FIGURES = {
    "skills, known": ("skills", "macro"),
    "skills, held back": ("skills", "held_back", "macro"),
    "sense, first messages": ("sense", "first"),
    "sense, turns 2 to 4": ("sense", "later"),
    "sense, typing errors": ("sense", "noisy"),
    "recall": ("recall",),
    "verbatim": ("verbatim", "share"),
    "bits per byte": ("bits_per_byte", "all"),
}


def dvc(*arguments: str) -> str:
    """What a command of DVC prints."""
    command = [sys.executable, "-m", "dvc", *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def run(seed: int) -> str:
    """The experiment with this seed, which is run if need be."""
    name = f"seed-{seed}"
    if name not in dvc("exp", "list", "--name-only").split():
        dvc("exp", "run", "--temp", "--name", name, "-S", f"train_model.seed={seed}")
    return name


def line(path: tuple[str, ...], runs: Sequence[dict[str, Any]]) -> str:
    """A figure in each of the runs, the mean, and the widest interval."""
    values = [reduce(getitem, path, run) for run in runs]
    bounds = [reduce(getitem, path, run["intervals"]) for run in runs]
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    return f"{' '.join(f'{value:.3f}' for value in values)}  {mean(values):.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3))
    parser.add_argument("--questions", type=int, default=100, help="for each number of tokens")
    parser.add_argument("--tokens", type=int, nargs="+", default=(0, 300, 700, 950))
    options = parser.parse_args()
    names = [run(seed) for seed in options.seeds]
    with tempfile.TemporaryDirectory() as folder:
        for path in ("data/metrics/evaluate.json", "data/export/onnx", "data/chat/test.jsonl"):
            for name in names:
                dvc("get", "--quiet", ".", path, "--rev", name, "--out", f"{folder}/{name}/{Path(path).name}")
        runs = [json.loads(Path(folder, name, "evaluate.json").read_text()) for name in names]
        for title, figure in FIGURES.items():
            print(f"{title:26} {line(figure, runs)}", flush=True)
        for name in names:
            print(name, flush=True)
            chats = [Path(folder, name, "onnx"), Path(folder, name, "test.jsonl"), "--questions", options.questions]
            command = [sys.executable, Path(__file__).with_name("long_chats.py"), *chats, "--tokens", *options.tokens]
            subprocess.run([str(part) for part in command], check=True)


if __name__ == "__main__":
    main()
