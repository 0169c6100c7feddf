"""The latency of engines beside the machine's memory bandwidth, the peak memory of a chat, and a tokenizer's speed."""

import json
import random
import resource
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from chatmill.conversation import is_document, parse, record_segments, unescape
from chatmill.engines.engine import ONNX_FILES, Engine
from chatmill.inference.chat_template import CHATMILL_TEMPLATES
from chatmill.inference.model_loading import engine_names, load_engine
from chatmill.pipeline.processes import die_with_parent, scripts_on_path
from chatmill.pipeline.progress import log, progress
from chatmill.record_files import read_records
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.binary import BinaryTokenizer

Metrics = dict[str, Any]
Bandwidths = dict[int, float]  # bytes per second by the size of the buffer that is read

# The least time of a token: that in which the machine's memory bandwidth lets it read the weights and the cache.

TRIALS = 5  # the median counts
TRIAL_BYTES = 100_000_000  # read in a trial; a smaller buffer is read repeatedly
# They read rows of tables; Reshape passes a table on to one that does.
LOOKUP_OPS = {"Gather", "GatherBlockQuantized", "GroupQueryAttention", "Reshape", "RotaryEmbedding"}


class Workload(NamedTuple):
    """What a model reads for each token: the bytes of its weights in each engine, and those of a token in the cache."""

    weights: Mapping[str, int]
    cached: int

    def bytes_per_token(self, engine: str, tokens: int) -> int:
        """Bytes read to generate one token after `tokens` others."""
        return self.weights[engine] + tokens * self.cached

    def min_token_ms(self, engine: str, tokens: int, bandwidths: Bandwidths) -> float:
        """By the bandwidth of a buffer that is as large as the weights."""
        return 1e3 * self.bytes_per_token(engine, tokens) / bandwidths[self.weights[engine]]


def read_workload(model: Path, onnx: Path) -> Workload:
    """The workload of each engine; that of PyTorch is the float32 graph's, and without a graph it is unknown."""
    weights = {name: weight_bytes(onnx / ONNX_FILES[name]) for name in engine_names(onnx)}
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    cached = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]  # of a token
    return Workload(({"pytorch": weights["onnx"]} | weights) if weights else {}, 4 * cached)


def weight_bytes(graph: Path) -> int:
    """Bytes of a graph's weights that each token reads: all but the tables of which it reads one row."""
    content = onnx.load(graph).graph
    needed = {name for node in content.node if node.op_type not in LOOKUP_OPS for name in node.input}
    return sum(len(tensor.raw_data) for tensor in content.initializer if tensor.name in needed)


def bandwidth(size: int, threads: int) -> float:
    """Bytes per second read from a buffer of this size; a small one stays in the CPU's caches, as weights do."""
    parts = np.array_split(np.ones(-(-size // 8), np.int64), threads)
    passes = max(1, TRIAL_BYTES // size)

    def read(part: NDArray[np.int64]) -> None:
        for _ in range(passes):
            part.max()  # the fastest reading call of NumPy

    with ThreadPoolExecutor(threads) as pool:
        return passes * size / median_seconds(lambda: list(pool.map(read, parts)))


def median_seconds(action: Callable[[], object], trials: int = TRIALS) -> float:
    """The median time that an action takes, after a warm-up."""
    times = []
    for _ in range(1 + trials):
        started = perf_counter()
        action()
        times.append(perf_counter() - started)
    return median(times[1:])


# The latency of engines, measured in turn, each time beside the bandwidth at the same time.

SECONDS = 120  # for the repetitions of all cases
RECOMPUTED_SECONDS = 2.0  # of a case without a cache, at most
RECOMPUTED_TOKENS = 3  # tokens of a repetition without a cache, each of which processes the complete text
RECOMPUTE_ENGINES = ("pytorch", "onnx")


@dataclass
class Case:
    engine: Engine
    mode: str
    prompt: list[int]
    times: list[list[float]] = field(default_factory=list)  # of each repetition, the first of which warms up


def fitting_lengths(prompt_tokens: Sequence[int], new_tokens: int, context: int) -> list[int]:
    """The lengths of prompts, in order, that leave room for an answer; the others are logged."""
    answer = max(new_tokens, RECOMPUTED_TOKENS)
    lengths = sorted(length for length in set(prompt_tokens) if length + answer <= context)
    if left_out := sorted(set(prompt_tokens) - set(lengths)):
        room = f"with an answer of {answer} they do not fit into a context of {context}"
        remedy = "" if lengths else "; the model is not timed: lower benchmark.prompt_tokens or benchmark.new_tokens"
        log("benchmark", f"prompts of {', '.join(map(str, left_out))} tokens are left out: {room}{remedy}")
    return lengths


def make_prompts(test: Path, tokenizer: ChatTokenizer, template: str, lengths: Sequence[int]) -> Iterator[list[int]]:
    """Prompts of these lengths from test conversations."""
    name = CHATMILL_TEMPLATES[template].name
    conversations = [record_segments(record, name) for record in islice(read_records(test), 100)]
    ids = tokenizer.encode_conversations(conversations).ids.tolist()
    if not ids:
        raise ValueError(f"{test}: no conversations for prompts: raise mix.test_share, or add data")
    return ((ids * (1 + length // len(ids)))[:length] for length in lengths)


def make_cases(engines: Sequence[Engine], prompts: Iterable[list[int]]) -> list[Case]:
    """All cases, ordered so that those which are compared follow one another."""
    return [
        Case(engine, mode, prompt)
        for prompt in prompts
        for mode in ("cache", "recompute")
        for engine in engines
        if mode == "cache" or engine.name in RECOMPUTE_ENGINES
    ]


def time_cases(
    cases: Sequence[Case], workload: Workload, new_tokens: int, repeats: int, threads: int
) -> tuple[list[Case], list[Bandwidths]]:
    """The cases with their times, and the bandwidths at the time of each repetition.

    Where all would take longer than SECONDS, cases without a cache that take long are left out, and there are fewer
    repetitions, two at least.
    """
    for case in progress(cases, "warm up"):
        case.times.append(token_times_ms(case, new_tokens))
    is_late = repeats * sum(sum(case.times[0]) for case in cases) > 1e3 * SECONDS
    most = 1e3 * (RECOMPUTED_SECONDS if is_late else SECONDS)
    kept = [case for case in cases if case.mode == "cache" or sum(case.times[0]) <= most]
    number = min(repeats, max(2, int(1e3 * SECONDS / sum(sum(case.times[0]) for case in kept))))
    if len(kept) < len(cases) or number < repeats:
        left_out = len(cases) - len(kept)
        log("benchmark", f"{number} repetitions, and {left_out} cases without a cache left out, to end in time")
    bandwidths = []
    for _ in progress(range(number), "time engines"):
        bandwidths.append({size: bandwidth(size, threads) for size in set(workload.weights.values())})
        for case in kept:
            case.times.append(token_times_ms(case, new_tokens))
    return kept, bandwidths


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


def latencies(cases: Sequence[Case], bandwidths: Sequence[Bandwidths], workload: Workload) -> Metrics:
    """The times by engine, mode and length of the prompt."""
    result: Metrics = {case.engine.name: defaultdict(dict) for case in cases}
    for case in cases:
        engine, tokens, times = case.engine.name, len(case.prompt), np.array(case.times[1:])
        first, following = times[:, 0], times[:, 1:]
        medians = np.median(following, axis=1)
        found: Metrics = {"ttft_ms": statistics(first, first), "token_ms": statistics(following, medians)}
        if case.mode == "cache" and engine in workload.weights:
            least = [workload.min_token_ms(engine, tokens, one) for one in bandwidths]
            found["reached"] = float(np.median(least / medians))
        result[engine][case.mode][str(tokens)] = found
    return result


def statistics(times: NDArray[np.float64], of_repetitions: NDArray[np.float64]) -> Metrics:
    percentiles = {f"p{share}": float(np.percentile(times, share)) for share in (50, 95)}
    return percentiles | {"spread": float(of_repetitions.max() / of_repetitions.min())}


def describe_limit(workload: Workload, bandwidths: Sequence[Bandwidths], tokens: int, timed: Metrics) -> Metrics:
    """The limit of the float32 model after this number of tokens, and the share of theirs that engines reach."""
    return {
        "bandwidth_gb_per_s": median(one[workload.weights["onnx"]] for one in bandwidths) / 1e9,
        "bytes_per_token": workload.bytes_per_token("onnx", tokens),
        "token_ms": median(workload.min_token_ms("onnx", tokens, one) for one in bandwidths),
        "reached": {name: values["cache"][str(tokens)]["reached"] for name, values in timed.items()},
    }


# The peak memory of a chat with one engine, measured in a process of its own.

NEW_TOKENS = 8
STATUS = Path("/proc/self/status")


def peak_memory_mb(folder: Path, engine: str, *, prompt_tokens: int, threads: int) -> float:
    with scripts_on_path(), ProcessPoolExecutor(1, get_context("spawn"), die_with_parent) as pool:
        return pool.submit(_chat, folder, engine, prompt_tokens, threads).result() / 1e6


def _chat(folder: Path, engine: str, prompt_tokens: int, threads: int) -> int:
    """Bytes of the process at most, after a prompt and some tokens."""
    loaded = load_engine(folder, engine, device="cpu", threads=threads)
    loaded.append([0] * prompt_tokens)
    for _ in range(min(NEW_TOKENS, loaded.context - loaded.length)):
        loaded.append([0])
    return peak_bytes()


def peak_bytes() -> int:
    if STATUS.exists():  # getrusage includes the parent's peak
        return 1024 * next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


# The speed of a tokenizer: encoding and decoding with one thread, and opening and reading tokenizer.bin.

TEXT_SIZE = 500_000  # characters to encode and decode in one repetition
LOOKUPS = 20_000


def time_tokenizer(tokenizer: ChatTokenizer, exports: Path, test: Path, repeats: int) -> Metrics:
    """Speed with one thread on the messages of the test set, and that of tokenizer.bin if it was exported."""
    texts = some_texts(test)
    ids = tokenizer.encode(texts)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    result = {
        "encode_mb_per_s": megabytes / median_seconds(lambda: tokenizer.encode(texts), repeats),
        "decode_mb_per_s": megabytes / median_seconds(lambda: [tokenizer.decode(one) for one in ids], repeats),
    }
    if not (file := exports / "tokenizer.bin").exists():
        return result
    opening = median_seconds(lambda: BinaryTokenizer(file).close(), repeats)
    with closing(BinaryTokenizer(file)) as binary:
        some = random.Random(0).choices(range(binary.vocab_size), k=LOOKUPS)
        lookups = median_seconds(lambda: [binary.token_bytes(i) for i in some], repeats)
    return result | {"lookup_ns": 1e9 * lookups / LOOKUPS, "open_ms": 1e3 * opening}


def some_texts(test: Path) -> list[str]:
    texts, size = [], 0
    for record in read_records(test):
        is_text = is_document(record.text)
        texts += [unescape(record.text)] if is_text else [message.text for message in parse(record.text)]
        size += len(record.text)
        if size >= TEXT_SIZE:
            break
    return texts
