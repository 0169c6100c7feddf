"""Seven types of tokenizers, each with models trained on the same data, at equal steps and at equal time.

    python tests/benchmarks/tokenizer_types.py FOLDER [--seeds N] [--steps N] [--jobs N] [--minutes M]
                                               [--set KEY=VALUE …]

In a project after `dvc repro mix`. Each run is the commands of dvc.yaml, with the parameters of params.yaml but those
named here, in a folder of its own; what is there is not made anew, so that a broken-off comparison goes on. A type
with a smaller vocabulary than `bpe`, whose steps take less time, is trained once more for as many steps as take the
time of bpe's on one thread of the processor. ± is half of the distance between the extremes of the seeds.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

TYPES = {
    "bpe": {"type": "bpe"},
    "wordpiece": {"type": "wordpiece"},
    "sentencepiece-unigram": {"type": "sentencepiece", "sentencepiece": {"algorithm": "unigram"}},
    "sentencepiece-bpe": {"type": "sentencepiece", "sentencepiece": {"algorithm": "bpe"}},
    "whitespace": {"type": "whitespace"},
    "char": {"type": "char"},
    "byte": {"type": "byte"},
}
TOKENIZER = ("train_tokenizer", "export_tokenizer", "encode", "score_teacher")
PACE_STEPS, PACE_ROUNDS = (5, 25), 3
BITS = {"bits per byte, all": "all", "answers": "assistant"}
COLUMNS: dict[str, Callable[[dict[str, Any]], float]] = {
    "counted n-grams, all": lambda found: found["bits_per_byte"]["baselines"]["ngram"],
    "first %": lambda found: 100 * found["sense"]["first"],
    "later %": lambda found: 100 * found["sense"]["later"],
    "typing errors %": lambda found: 100 * found["sense"]["noisy"],
    "recall %": lambda found: 100 * found["recall"],
    "skills %": lambda found: 100 * found["skills"]["macro"],
    "held back %": lambda found: 100 * found["skills"]["held_back"]["macro"],
    "bytes per token": lambda found: found["tokenizer"]["bytes_per_token"],
    "graph MB": lambda found: found["engines"]["onnx"]["size_mb"],
}


def run_stages(folder: Path, names: tuple[str, ...], changes: dict[str, Any]) -> None:
    """Run the commands of these stages in a folder, unless their last one ended there before."""
    done = folder / f"{names[-1]}.done"
    if done.exists():
        return
    params = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    for key, value in changes.items():
        *sections, name = key.split(".")
        place = params[sections[0]] if sections else params
        place[name] = place[name] | value if isinstance(value, dict) else value
    (folder / "data").mkdir(parents=True, exist_ok=True)
    (folder / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    for place in ("stages", "data/chat", "data/raw"):
        link(folder / place, Path(place).resolve())
    stages = yaml.safe_load(Path("dvc.yaml").read_text(encoding="utf-8"))["stages"]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for name in names:
        with (folder / f"{name}.log").open("w", encoding="utf-8") as log:
            subprocess.run(
                stages[name]["cmd"], shell=True, cwd=folder, env=environment, stderr=log, stdout=log, check=True
            )
    done.touch()


def link(place: Path, target: Path) -> None:
    """Make a link, if there is none."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.is_symlink():
        place.symlink_to(target)


def seconds_per_step(base: Path, changes: dict[str, Any]) -> float:
    """Of one thread of the processor in training, measured once; in processor time, as other programs may run."""
    file = base / "seconds_per_step.json"
    if not file.exists():
        took = dict.fromkeys(PACE_STEPS, float("inf"))
        changes = changes | {"train_model.device": "cpu", "threads": 1}
        for steps in PACE_STEPS * PACE_ROUNDS:
            folder = trained(base, f"pace-{steps}")
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            run_stages(folder, ("train_model",), changes | {"train_model.steps": steps})
            took[steps] = min(took[steps], resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
            shutil.rmtree(folder)
        short, long = PACE_STEPS
        file.write_text(json.dumps((took[long] - took[short]) / (long - short)), encoding="utf-8")
    return float(json.loads(file.read_text(encoding="utf-8")))


def trained(base: Path, name: str) -> Path:
    """The folder of a model with a type's tokenizer."""
    for place in ("tokenizer", "export/tokenizer", "tokens", "teacher"):
        link(base / name / "data" / place, (base / "data" / place).resolve())
    return base / name


def row(name: str, folders: list[Path]) -> str:
    """The means of the seeds, with 95 % intervals over conversations, and the first one's latency, if measured."""
    found = [json.loads((folder / "data/metrics/evaluate.json").read_text(encoding="utf-8")) for folder in folders]
    cells = [name, str(len(folders))]
    for key in BITS.values():
        ends = zip(*(one["intervals"]["bits_per_byte"][key] for one in found), strict=True)
        interval = ", ".join(f"{mean(values):.4f}" for values in ends)
        cells.append(f"{spread([one['bits_per_byte'][key] for one in found])} [{interval}]")
    cells += [spread([value(one) for one in found]) for value in COLUMNS.values()]
    cells.append(f"{(folders[0] / 'data/export/tokenizer/tokenizer.bin').stat().st_size / 1e3:.0f}")
    speed = folders[0] / "data/metrics/benchmark.json"
    if speed.exists():
        at = json.loads(speed.read_text(encoding="utf-8"))["onnx"]["cache"]["128"]
        cells.append(f"{at['ttft_ms']['p50']:.3g} / {at['token_ms']['p50']:.3g}")
    return f"| {' | '.join(cells)} |"


def spread(values: list[float]) -> str:
    """The mean, and half of the distance between the extremes."""
    half = (max(values) - min(values)) / 2
    return f"{mean(values):.4g} ± {half:.1g}" if half > 1e-4 else f"{mean(values):.4g}"


def plan(folder: Path, steps: int, changes: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
    """The type and name of each group of runs, and its number of steps."""
    sizes = {kind: vocab_size(folder / kind) for kind in TYPES}
    kinds = {size: kind for kind, size in reversed(sizes.items())}  # the first of each size
    pace = {size: seconds_per_step(folder / kind, changes) for size, kind in kinds.items()}
    yield from ((kind, kind, steps) for kind in TYPES)
    for kind, size in sizes.items():
        if size != sizes["bpe"]:
            more = round(steps * pace[sizes["bpe"]] / pace[size])
            yield kind, f"{kind}, {more} steps: the time of bpe", more


def vocab_size(base: Path) -> int:
    """Of a type's tokenizer: with one of the same size, the model is as large and a step takes as long."""
    return int(json.loads((base / "data/tokens/meta.json").read_text(encoding="utf-8"))["vocab_size"])


def main() -> None:
    """Make what is missing, and print the table of what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--steps", type=int, default=yaml.safe_load(Path("params.yaml").read_text())["train_model"]["steps"]
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after that")
    parser.add_argument("--set", nargs="*", default=[], help="further parameters, as YAML")
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    folder = arguments.folder.resolve()
    changes = {"train_model.compile": False} | {
        key: yaml.safe_load(value) for key, value in (one.split("=", 1) for one in arguments.set)
    }
    for kind, settings in TYPES.items():
        of_type = {f"train_tokenizer.{key}": value for key, value in settings.items()}
        run_stages(folder / kind, TOKENIZER, changes | of_type)
    groups = list(plan(folder, arguments.steps, changes))

    def complete(seed: int, kind: str, steps: int) -> None:
        if time.monotonic() < end:
            own = {f"train_tokenizer.{key}": value for key, value in TYPES[kind].items()}
            own |= {"train_model.seed": seed, "train_model.steps": steps}
            place = trained(folder / kind, f"{steps}-{seed}")
            run_stages(place, ("train_model", "export_onnx", "evaluate"), changes | own)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        runs = [
            pool.submit(complete, seed, kind, steps)
            for seed in range(1, arguments.seeds + 1)
            for kind, _, steps in groups
        ]
    failed = [error for run in runs if (error := run.exception())]
    titles = ["type", "seeds", *BITS, *COLUMNS, "tokenizer.bin kB", "ms, first / next token"]
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    for kind, name, steps in groups:
        folders = [folder / kind / f"{steps}-{seed}" for seed in range(1, arguments.seeds + 1)]
        if complete_ones := [one for one in folders if (one / "evaluate.done").exists()]:
            if time.monotonic() < end and steps == arguments.steps:
                run_stages(complete_ones[0], ("benchmark",), changes)
            print(row(name, complete_ones))
    if failed:
        raise failed[0]


if __name__ == "__main__":
    main()
