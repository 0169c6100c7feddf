"""The latency of engines beside the machine's limits (roofline), and the peak memory of a chat.

A token takes at least as long as reading the weights and the cache. A prompt takes at least as long as reading the
weights, and at least as long as its matrix products in float32.
"""

import json
import resource
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from chatmill.engines.engine import ONNX_FILES, Engine
from chatmill.engines.onnx_engine import Session
from chatmill.inference.model_loading import engine_names, load_engine
from chatmill.pipeline.processes import SOURCE_ROOT, die_with_parent
from chatmill.pipeline.progress import log, progress

# Lower bounds of latency (roofline): the machine's memory bandwidth and FLOP/s, and how much of each a model needs.

TRIALS = 5  # the median counts
TRIAL_BYTES = 100_000_000  # read in a trial; a smaller buffer is read repeatedly
ROWS, WIDTH, NUM_MATMULS = 1024, 512, 8  # a trial multiplies (ROWS, WIDTH) by (WIDTH, WIDTH) NUM_MATMULS times
# They read rows of tables; Reshape passes a table on to one that does.
LOOKUP_OPS = {"Gather", "GatherBlockQuantized", "GroupQueryAttention", "Reshape", "RotaryEmbedding"}


class MachineLimits(NamedTuple):
    """Memory bandwidth in bytes per second by the size of the buffer that is read, and FLOP/s of matrix products."""

    bandwidths: dict[int, float]
    flops_per_second: float


class Workload(NamedTuple):
    """A model's demand, from its Qwen3 config.json and the bytes of its weights in each engine."""

    config: Mapping[str, Any]
    weights: Mapping[str, int]

    def bytes_per_token(self, engine: str, tokens: int) -> int:
        """Bytes read to generate one token after `tokens` others: the weights, and the keys and values in the cache."""
        heads: int = self.config["num_hidden_layers"] * self.config["num_key_value_heads"]
        size: int = self.config["head_dim"]
        return self.weights[engine] + tokens * heads * size * 2 * np.dtype(np.float32).itemsize

    def prompt_flops(self, tokens: int) -> int:
        """FLOPs of the matrix products that process a prompt of `tokens` tokens."""
        width, size = self.config["hidden_size"], self.config["head_dim"]
        heads, kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        weights = width * size * 2 * (heads + kv_heads) + 3 * width * self.config["intermediate_size"]
        attended = tokens * (tokens + 1) // 2  # pairs of a position and itself or an earlier one
        layer = tokens * weights + 2 * attended * heads * size
        products: int = self.config["num_hidden_layers"] * layer + width * self.config["vocab_size"]
        return 2 * products

    def min_token_ms(self, engine: str, tokens: int, limits: MachineLimits) -> float:
        return 1e3 * self.bytes_per_token(engine, tokens) / limits.bandwidths[self.weights[engine]]

    def min_ttft_ms(self, engine: str, tokens: int, limits: MachineLimits) -> float:
        return max(1e3 * self.prompt_flops(tokens) / limits.flops_per_second, self.min_token_ms(engine, 0, limits))


def weight_bytes(graph: Path) -> int:
    """Bytes of a graph's weights that each token reads: all but the tables of which it reads one row."""
    content = onnx.load(graph).graph
    needed = {name for node in content.node if node.op_type not in LOOKUP_OPS for name in node.input}
    return sum(len(tensor.raw_data) for tensor in content.initializer if tensor.name in needed)


class LimitsProbe:
    """Measures the limits of the machine with this number of threads."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "products.onnx")
            onnx.save(_matmul_graph(), file)
            self._session = Session(file, threads=threads)

    def measure(self, sizes: Iterable[int]) -> MachineLimits:
        return MachineLimits({size: self.bandwidth(size) for size in set(sizes)}, self.flops_per_second())

    def bandwidth(self, size: int) -> float:
        """Bytes per second read from a buffer of this size; a small one stays in the CPU's caches, as weights do."""
        parts = np.array_split(np.ones(-(-size // 8), np.int64), self.threads)
        passes = max(1, TRIAL_BYTES // size)

        def read(part: NDArray[np.int64]) -> None:
            for _ in range(passes):
                part.max()  # the fastest reading call of NumPy

        with ThreadPoolExecutor(self.threads) as pool:
            return passes * size / median_seconds(lambda: list(pool.map(read, parts)))

    def flops_per_second(self) -> float:
        feed = {"rows": np.ones((ROWS, WIDTH), np.float32)}
        return NUM_MATMULS * 2 * ROWS * WIDTH**2 / median_seconds(lambda: self._session.run(["product"], feed))


def _matmul_graph() -> onnx.ModelProto:
    names = ["rows", *(f"product.{i}" for i in range(1, NUM_MATMULS)), "product"]
    nodes = [helper.make_node("MatMul", [x, "weight"], [y]) for x, y in pairwise(names)]
    start, end = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [ROWS, WIDTH]) for name in ("rows", "product"))
    weight = numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), "weight")
    graph = helper.make_graph(nodes, "products", [start], [end], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def median_seconds(action: Callable[[], object], trials: int = TRIALS) -> float:
    """The median time that an action takes, after a warm-up."""
    times = []
    for _ in range(1 + trials):
        started = perf_counter()
        action()
        times.append(perf_counter() - started)
    return median(times[1:])


def read_workload(model: Path, onnx: Path) -> Workload:
    """The workload of each engine; that of PyTorch is the float32 graph's, and without a graph it is unknown."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    weights = {name: weight_bytes(onnx / ONNX_FILES[name]) for name in engine_names(onnx)}
    return Workload(config, {"pytorch": weights["onnx"]} | weights if weights else {})


# Latency of engines, measured in turn and compared with the limits of the machine at the same time.

SECONDS = 120  # for the repetitions of all cases
RECOMPUTED_SECONDS = 2.0  # of a case without a cache, at most, if time is short
RECOMPUTED_TOKENS = 3  # tokens of a repetition without a cache, each of which processes the complete text
RECOMPUTE_ENGINES = ("pytorch", "onnx")

Metrics = dict[str, Any]


class Case(NamedTuple):
    engine: Engine
    mode: str
    prompt: list[int]


class Repetition(NamedTuple):
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
) -> tuple[list[Case], list[Repetition]]:
    """The measured cases, and the repetitions, without a first one that warms up.

    Where that one shows that all would take longer than SECONDS, there are less repetitions, two at least, and long
    cases without a cache are left out.
    """
    seconds = [sum(token_times_ms(case, new_tokens)) / 1e3 for case in progress(cases, "warm up")]
    timed = list(zip(cases, seconds, strict=True))
    if sum(seconds) * repeats > SECONDS:
        timed = [(case, took) for case, took in timed if case.mode == "cache" or took <= RECOMPUTED_SECONDS]
    kept = [case for case, _ in timed]
    number = min(repeats, max(2, int(SECONDS / sum(took for _, took in timed))))
    if len(kept) < len(cases) or number < repeats:
        left_out = len(cases) - len(kept)
        log("benchmark", f"{number} repetitions, and {left_out} cases without a cache left out, to end in time")
    repetitions = [
        Repetition(probe.measure(workload.weights.values()), [token_times_ms(case, new_tokens) for case in kept])
        for _ in progress(range(number), "time engines")
    ]
    return kept, repetitions


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
    arguments = [folder, engine, prompt_tokens, threads]
    command = [sys.executable, "-m", __name__, *map(str, arguments)]
    environment = {"PYTHONPATH": SOURCE_ROOT}
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return int(result.stdout) / 1e6


def main(folder: str, engine: str, prompt_tokens: str, threads: str) -> None:
    die_with_parent()
    loaded = load_engine(Path(folder), engine, device="cpu", threads=int(threads))
    loaded.append([0] * int(prompt_tokens))
    for _ in range(min(NEW_TOKENS, loaded.context - loaded.length)):
        loaded.append([0])
    print(peak_bytes())


def peak_bytes() -> int:
    if STATUS.exists():  # getrusage includes the parent's peak
        return 1024 * next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


if __name__ == "__main__":
    main(*sys.argv[1:])
