"""The latency of chatmill's engines, compared with other runtimes on the same weights and with the machine's limits.

    python tests/benchmarks/latency.py [MODEL ...] [--threads N ...] [--busy]

MODEL is a folder that train_model wrote, or 30M or 100M: an untrained model of that size (default: both).
Installed peers are included: transformers, onnxruntime-genai, ctranslate2, and llama-cpp-python with gguf. All answer
the same prompts in turn, round after round, each in a process of its own that is stopped while others run. Before each
prompt, the memory bandwidth is measured with the same threads: a token takes at least as long as reading the weights.
Cells are medians over the rounds: milliseconds to the first token / for each next one. Ratios are taken within a round;
their least and largest are in parentheses, and after them is the ratio of the fastest times, which other processes of
the machine did not slow down. With --busy, another process keeps one core busy during every second answer.
"""

import argparse
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import distributions
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from peer_files import SHAPES, read_config, write_all
from peers import WAITING, Worker, names

from chatmill.benchmarking import Workload, bandwidth, read_workload
from chatmill.engines.engine import default_threads
from chatmill.pipeline.progress import progress
from chatmill.processor import processor_name as processor

PROMPTS = (16, 128, 512, 1024)
EXACT = ("pytorch", "onnx", "onnx_hf", "transformers", "genai", "ctranslate2", "llama_f32")  # float32, the same ids
PACKAGES = {"onnxruntime", "torch", "transformers", "onnxruntime-genai", "ctranslate2", "llama_cpp_python"}
BESIDE_BUSY, BUSY_PROMPT = ("onnx", *WAITING, "genai", "llama_f32"), 128


class Target(NamedTuple):
    """A target: how many times as fast as another one of our engines should be; `limit` is the machine's limit."""

    ours: str
    other: str
    what: str  # token or ttft
    times: float
    prompts: Sequence[int] = PROMPTS


TARGETS = (
    Target("onnx", "limit", "token", 1 / 1.1),
    Target("onnx", "llama_f32", "token", 1),
    Target("onnx", "genai", "token", 1),
    Target("onnx", "transformers", "token", 3.5),
    Target("onnx_int8", "llama_q8_0", "token", 1 / 1.1),
    Target("onnx_int4", "llama_q4_0", "token", 1 / 1.1),
    Target("onnx", "llama_f32", "ttft", 1.3, PROMPTS[-1:]),
)


class Race:
    """The times of all engines after each prompt, round by round."""

    def __init__(self, needs: Workload) -> None:
        self.needs = needs
        self.ms: dict[tuple[str, str, int], list[float]] = defaultdict(list)  # by engine, what and tokens of the prompt
        self.best: dict[tuple[str, str, int], float] = {}  # the least of all tokens and rounds
        self.ids: dict[tuple[str, int], list[int]] = {}
        self.bandwidths: list[dict[int, float]] = []  # by size

    def run(
        self, workers: Sequence[Worker], threads: int, prompts: Sequence[list[int]], tokens: int, rounds: int
    ) -> None:
        """Let all answer `rounds` rounds, after a discarded one."""
        for number in progress(range(1 + rounds), "rounds"):
            for prompt in prompts:
                bandwidths = {size: bandwidth(size, threads) for size in set(self.needs.weights.values())}
                first = number % len(workers)  # none always follows the same one
                answers = {
                    worker.name: worker.answer(prompt, tokens) for worker in [*workers[first:], *workers[:first]]
                }
                if number:
                    self.add(len(prompt), bandwidths, {name: answer.ms for name, answer in answers.items()})
                self.ids |= {(name, len(prompt)): answer.ids for name, answer in answers.items()}

    def add(self, length: int, bandwidths: dict[int, float], times: dict[str, list[float]]) -> None:
        """Add the times of a round with a prompt of some length."""
        self.bandwidths.append(bandwidths)
        found = {
            (f"limit {name}", "token"): [self.needs.min_token_ms(name, length, bandwidths)]
            for name in self.needs.weights
        }
        for name, (first, *rest) in times.items():
            found |= {(name, "ttft"): [first], (name, "token"): rest}
        for (name, what), values in found.items():
            key = name, what, length
            self.ms[key].append(median(values))
            self.best[key] = min(*values, self.best.get(key, math.inf))

    def times_as_fast(self, ours: str, other: str, what: str, length: int) -> list[float]:
        """How many times as fast as the other ours is, in each round."""
        other = f"limit {ours}" if other == "limit" else other
        pairs = zip(self.ms[other, what, length], self.ms[ours, what, length], strict=True)
        return [theirs / mine for theirs, mine in pairs]

    def at_best(self, ours: str, other: str, what: str, length: int) -> float:
        """How many times as fast as the other ours is where nothing else ran."""
        other = f"limit {ours}" if other == "limit" else other
        return self.best[other, what, length] / self.best[ours, what, length]

    def same_ids(self, name: str, other: str) -> float:
        """The fraction of ids that are the same, over all prompts."""
        pairs = [
            mine == theirs
            for (worker, length), ids in self.ids.items()
            if worker == name
            for mine, theirs in zip(ids, self.ids[other, length], strict=True)
        ]
        return sum(pairs) / len(pairs)


@contextmanager
def started(engines: Sequence[str], folder: Path, threads: int) -> Iterator[list[Worker]]:
    """A worker for each engine, closed at the end."""
    with ExitStack() as stack:
        workers = []
        for name in engines:
            workers.append(Worker(name, folder, threads))
            stack.callback(workers[-1].close)
        yield workers


def row(*cells: object) -> str:
    """A row of a table in Markdown."""
    return f"| {' | '.join(map(str, cells))} |"


def head(*cells: object) -> str:
    """The first two rows of a table."""
    return f"{row(*cells)}\n|{'---|' * len(cells)}"


def span(values: Sequence[float]) -> str:
    """The median, the least and the largest."""
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def show(race: Race, engines: Sequence[str], prompts: Sequence[int]) -> None:
    """Print the times of all, the fraction of the memory limit that ours reach, and whether all did the same work."""
    print(head("engine", *(f"{length:,}" for length in prompts), "MB a token", "limit reached", "same ids"))
    for name in engines:
        cells = [
            "{:.1f} / {:.2f}".format(*(median(race.ms[name, what, n]) for what in ("ttft", "token"))) for n in prompts
        ]
        limit = ["–", "–"]
        if name in race.needs.weights:
            share = median(race.times_as_fast(name, "limit", "token", prompts[-1]))
            limit = [f"{race.needs.bytes_per_token(name, prompts[-1]) / 1e6:.1f}", f"{share:.0%}"]
        print(row(name, *cells, *limit, f"{race.same_ids(name, 'onnx'):.0%}"))
    wrong = [name for name in engines if name in EXACT and race.same_ids(name, "onnx") < 1]
    print(f"\nNOT THE SAME WORK: {', '.join(wrong)}\n" if wrong else "")


def show_targets(race: Race, engines: Sequence[str], prompts: Sequence[int]) -> None:
    """Print the targets, and the ratios that were reached."""
    print(head("times as fast", "", "target", *(f"{length:,}" for length in prompts)))
    for target in TARGETS:
        if target.ours in engines and target.other in (*engines, "limit"):
            cells = [
                f"{span(race.times_as_fast(*target[:3], length))}, {race.at_best(*target[:3], length):.2f}"
                if length in target.prompts
                else "–"
                for length in prompts
            ]
            print(row(f"{target.ours} as {target.other}", target.what, f"{target.times:.2f}", *cells))
    print()


def compare(folder: Path, options: argparse.Namespace) -> None:
    """Print the tables of one model, for each number of threads."""
    config = read_config(folder / "model")
    needs = read_workload(folder / "model", folder / "onnx")
    context = config["max_position_embeddings"]
    lengths = [length for length in options.prompts if length + options.tokens < context]
    if not lengths:
        sys.exit(f"--prompts: none leaves room for {options.tokens} tokens in a context of {context}")
    ids = np.random.default_rng(0).integers(0, config["vocab_size"] - 1, max(lengths)).tolist()
    for threads in options.threads:
        race = Race(needs)
        with started(options.engines, folder, threads) as workers:
            race.run(workers, threads, [ids[:length] for length in lengths], options.tokens, options.rounds)
        of_weights = [found[needs.weights["onnx"]] / 1e9 for found in race.bandwidths]
        print(f"\n### {folder.name}, {threads} threads: {span(of_weights)} GB/s\n")
        show(race, options.engines, lengths)
        show_targets(race, options.engines, lengths)


def compare_busy(folder: Path, options: argparse.Namespace) -> None:
    """Print how many times as slow engines are while another process keeps one core busy."""
    cores = sorted(os.sched_getaffinity(0))
    prompt = [0] * BUSY_PROMPT
    print(f"\n### {folder.name}, one of {len(cores)} cores busy, after {BUSY_PROMPT} tokens\n")
    print(head("engine", "threads", "quiet, ms", "busy, ms", "times as slow"))
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    os.sched_setaffinity(busy.pid, cores[-1:])
    try:
        for name in (name for name in BESIDE_BUSY if name in WAITING or name in options.engines):
            for threads in sorted({default_threads(), len(cores)}):
                times: dict[signal.Signals, list[float]] = {signal.SIGSTOP: [], signal.SIGCONT: []}
                with started([name], folder, threads) as (worker,):
                    for _ in progress(range(1 + options.rounds), f"{name}, {threads} threads"):
                        for state, found in times.items():
                            busy.send_signal(state)
                            found.append(median(worker.answer(prompt, options.tokens).ms[1:]))
                quiet, disturbed = (found[1:] for found in times.values())
                slower = [a / b for a, b in zip(disturbed, quiet, strict=True)]
                print(row(name, threads, f"{median(quiet):.2f}", f"{median(disturbed):.2f}", span(slower)), flush=True)
    finally:
        busy.kill()


def model(argument: str) -> str:
    """MODEL of the command line."""
    if argument not in SHAPES and not (Path(argument) / "config.json").is_file():
        raise argparse.ArgumentTypeError(f"{argument}: expected a folder of train_model's, {' or '.join(SHAPES)}")
    return argument


def main() -> None:
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", type=model, default=list(SHAPES), metavar="MODEL")
    parser.add_argument("--threads", nargs="+", type=int, default=sorted({1, min(2, cores), cores}))
    parser.add_argument("--engines", nargs="+", choices=names(), default=names(), metavar="NAME")
    parser.add_argument("--prompts", nargs="+", type=int, default=PROMPTS)
    parser.add_argument("--tokens", type=int, default=32, help="of an answer, after the first")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", action="store_true", help="beside a process that keeps one core busy")
    options = parser.parse_args()
    options.engines = list(dict.fromkeys(["onnx", *options.engines]))  # the others' ids are compared with those of onnx
    versions = [f"{found.name} {found.version}" for found in distributions() if found.name in PACKAGES]
    print(f"{processor()}, {cores} cores, load {os.getloadavg()[0]:.1f}; {', '.join(versions)}")
    for name in options.models:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary, Path(name).name)
            try:
                write_all(name, folder)
            except (ValueError, OSError) as error:
                sys.exit(str(error))
            (compare_busy if options.busy else compare)(folder, options)


if __name__ == "__main__":
    main()
