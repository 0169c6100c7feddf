"""Latency of engines, measured in turn and compared with the limits of the machine at the same time."""

import resource
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from chatmill.benchmarking.roofline import LimitsProbe, MachineLimits, Workload
from chatmill.engines.engine import Engine
from chatmill.inference.model_loading import load_engine
from chatmill.pipeline.processes import SOURCE_ROOT, die_with_parent
from chatmill.pipeline.progress import progress

RECOMPUTED_TOKENS = 3  # tokens of a repetition without a cache, each of which processes the complete text
RECOMPUTE_ENGINES = ("pytorch", "onnx")

Metrics = dict[str, Any]


class Case(NamedTuple):
    """One measurement: an engine that answers a prompt, with its cache or without."""

    engine: Engine
    mode: str
    prompt: list[int]


class Repetition(NamedTuple):
    """One repetition: the limits of the machine, and the milliseconds of each token for each case."""

    limits: MachineLimits
    times: list[list[float]]


def make_cases(engines: Sequence[Engine], prompts: Sequence[list[int]]) -> list[Case]:
    """All cases, ordered so that those which are compared follow one another."""
    return [
        Case(engine, mode, prompt)
        for prompt in prompts
        for mode in ("cache", "recompute")
        for engine in engines
        if mode == "cache" or engine.name in RECOMPUTE_ENGINES
    ]


def time_cases(
    cases: Sequence[Case], workload: Workload, probe: LimitsProbe, new_tokens: int, repeats: int
) -> list[Repetition]:
    """The repetitions, without a first one that warms up."""
    repetitions = [
        Repetition(probe.measure(workload.weights.values()), [token_times_ms(case, new_tokens) for case in cases])
        for _ in progress(range(1 + repeats), "time engines")
    ]
    return repetitions[1:]


def token_times_ms(case: Case, new_tokens: int) -> list[float]:
    """Milliseconds to the first token, and for each next one."""
    ids, times = list(case.prompt), []
    case.engine.rewind(0)
    for _ in range(1 + (new_tokens if case.mode == "cache" else RECOMPUTED_TOKENS)):
        started = perf_counter()
        if case.mode == "recompute":
            case.engine.rewind(0)
        ids.append(int(case.engine.append(ids[case.engine.length :]).argmax()))
        times.append(1e3 * (perf_counter() - started))
    return times


def latencies(cases: Sequence[Case], repetitions: Sequence[Repetition], workload: Workload) -> Metrics:
    """The measured times by engine, mode and length of the prompt."""
    result: Metrics = {case.engine.name: defaultdict(dict) for case in cases}
    limits = [limits for limits, _ in repetitions]
    for index, case in enumerate(cases):
        answers = [times[index] for _, times in repetitions]
        values = time_statistics(answers)
        if case.mode == "cache" and case.engine.name in workload.weights:
            values["bytes_per_token"] = workload.bytes_per_token(case.engine.name, len(case.prompt))
            values["reached"] = fraction_of_limit(case, answers, limits, workload)
        result[case.engine.name][case.mode][str(len(case.prompt))] = values
    return result


def time_statistics(answers: Sequence[Sequence[float]]) -> Metrics:
    """Statistics over the repetitions of a case; `spread` is the slowest divided by the fastest of them."""
    firsts, nexts = [first for first, *_ in answers], [rest for _, *rest in answers]
    medians = [median(rest) for rest in nexts]
    return {
        "ttft_ms": percentiles(firsts) | {"spread": max(firsts) / min(firsts)},
        "token_ms": percentiles(list(chain.from_iterable(nexts))) | {"spread": max(medians) / min(medians)},
    }


def fraction_of_limit(
    case: Case, answers: Sequence[Sequence[float]], limits: Sequence[MachineLimits], workload: Workload
) -> Metrics:
    """The least time that the machine allows divided by the measured one, for the first token and the next ones."""
    name, tokens = case.engine.name, len(case.prompt)
    pairs = list(zip(answers, limits, strict=True))
    return {
        "ttft": median(workload.min_ttft_ms(name, tokens, limit) / first for (first, *_), limit in pairs),
        "token": median(workload.min_token_ms(name, tokens, limit) / median(rest) for (_, *rest), limit in pairs),
    }


def percentiles(values: Sequence[float]) -> Metrics:
    """The median and the 95th percentile."""
    return {f"p{share}": float(np.percentile(values, share)) for share in (50, 95)}


def describe_limit(workload: Workload, repetitions: Sequence[Repetition], tokens: int) -> Metrics:
    """The limits of the machine for the float32 model after this number of tokens."""
    return {
        "bandwidth_gb_per_s": median(limits.bandwidths[workload.weights["onnx"]] for limits, _ in repetitions) / 1e9,
        "matrix_gflop_per_s": median(limits.flops_per_second for limits, _ in repetitions) / 1e9,
        "bytes_per_token": workload.bytes_per_token("onnx", tokens),
        "token_ms": median(workload.min_token_ms("onnx", tokens, limits) for limits, _ in repetitions),
        "ttft_ms": median(workload.min_ttft_ms("onnx", tokens, limits) for limits, _ in repetitions),
    }


# The peak memory of a chat with one engine, measured in a process of its own.

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
