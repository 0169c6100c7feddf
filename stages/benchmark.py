"""Measure how fast the tokenizer and the chat model are, with every engine.

`ttft_ms` is the time to the first token, from the prompt's ids to the greedy choice, and `token_ms` that of each next
token. With `cache` the engine uses its key-value cache; with `recompute` each token processes the complete sequence.
`turn_ms` is the time to read a message of TURN_TOKENS tokens after a cached history of the given length. Repetitions of
all engines alternate, after a warm-up that does not count; `spread` is the slowest divided by the fastest of them.
`limit` is measured in each repetition with the same number of threads: a token takes at least as long as reading the
weights and the cache. `reached` is this least time divided by the measured one. `streaming` is the share of a token's
time that is spent on sampling and detokenizing it.
"""

import json
import os
import platform
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from chatmill.benchmarking.latency import (
    RECOMPUTED_TOKENS,
    Metrics,
    Repetition,
    latencies,
    make_cases,
    peak_memory_mb,
    percentiles,
    time_cases,
)
from chatmill.benchmarking.roofline import LimitsProbe, Workload, weight_bytes
from chatmill.conversation import is_document, parse, record_segments, unescape
from chatmill.engines.engine import ONNX_FILES, Engine
from chatmill.inference.chat_template import CHATMILL_TEMPLATES
from chatmill.inference.generation import IncrementalDetokenizer, generate
from chatmill.inference.model_loading import engine_names, load_engine
from chatmill.inference.sampler import Sampler, Sampling
from chatmill.pipeline.params_file import PositiveInt
from chatmill.pipeline.progress import log, progress
from chatmill.pipeline.signatures import Output
from chatmill.pipeline.stage import stage
from chatmill.record_files import read_records
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.binary import open_binary
from chatmill.tokenizer.formats.tokenizer_loading import load as load_tokenizer

TURN_TOKENS = 32
STREAMED = 200  # tokens of an answer, at most
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(temperature=0.8, top_p=0.95)}
TEXT_SIZE = 500_000  # characters to encode and decode in one repetition
LOOKUPS = 20_000


def time_turns(engines: Sequence[Engine], ids: list[int], repeats: int) -> Iterator[Metrics]:
    """The milliseconds that each engine takes to read a message without a history and after the longest one."""
    histories = (0, len(ids) - TURN_TOKENS)
    times: dict[tuple[str, int], list[float]] = {
        (engine.name, history): [] for engine in engines for history in histories
    }
    for repetition in progress(range(1 + repeats), "time turns"):
        for engine in engines:
            engine.rewind(0)
            for history in histories:
                if history:
                    engine.append(ids[engine.length : history])
                started = perf_counter()
                engine.append(ids[history : history + TURN_TOKENS])
                if repetition:
                    times[engine.name, history].append(1e3 * (perf_counter() - started))
    for engine in engines:
        yield {str(history): percentiles(times[engine.name, history]) for history in histories}


class TimedEngine:
    """An engine that measures its own time in `append`."""

    def __init__(self, engine: Engine) -> None:
        self.context, self._engine, self.seconds = engine.context, engine, 0.0

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self._engine.length

    def append(self, ids: Sequence[int]) -> np.ndarray:
        """The logits of the engine."""
        started = perf_counter()
        logits = self._engine.append(ids)
        self.seconds += perf_counter() - started
        return logits


def measure_streaming(engine: Engine, tokenizer: ChatTokenizer, prompt: list[int], repeats: int) -> Metrics:
    """The share of an answer's time outside the engine, by the sampling method."""
    shares = defaultdict(list)
    for repetition in range(1 + repeats):
        for name, sampling in SAMPLINGS.items():
            engine.rewind(0)
            engine.append(prompt[:-1])
            timed, sampler, reply = (
                TimedEngine(engine),
                Sampler(tokenizer.is_text, sampling),
                IncrementalDetokenizer(tokenizer),
            )
            started = perf_counter()
            for token in generate(timed, prompt[-1:], sampler=sampler, stop_ids=(), max_tokens=STREAMED):
                reply.push(token)
            if repetition:
                shares[name].append(1 - timed.seconds / (perf_counter() - started))
    return {name: median(values) for name, values in shares.items()}


def make_prompts(test: Path, tokenizer: ChatTokenizer, engine: Engine, lengths: Sequence[int]) -> Iterator[list[int]]:
    """Prompts of these lengths from concatenated test conversations, repeated if needed."""
    records = read_records(test)
    conversations = [
        record_segments(record, CHATMILL_TEMPLATES[engine.template].name)
        for record, _ in zip(records, range(100), strict=False)
    ]
    ids = tokenizer.encode_conversations(conversations).ids.tolist()
    if not ids:
        raise ValueError(f"{test}: no conversations for prompts: raise mix.test_share, or add data")
    for length in lengths:
        yield (ids * (1 + length // len(ids)))[:length]


def read_workload(model: Path, onnx: Path) -> Workload:
    """The workload of each engine; that of PyTorch is the float32 graph's, and without a graph it is unknown."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    weights = {name: weight_bytes(onnx / ONNX_FILES[name]) for name in engine_names(onnx)}
    return Workload(config, {"pytorch": weights["onnx"]} | weights if weights else {})


def describe_limit(workload: Workload, repetitions: Sequence[Repetition], tokens: int) -> Metrics:
    """The limits of the machine for the float32 model after this number of tokens."""
    return {
        "bandwidth_gb_per_s": median(limits.bandwidths[workload.weights["onnx"]] for limits, _ in repetitions) / 1e9,
        "matrix_gflop_per_s": median(limits.flops_per_second for limits, _ in repetitions) / 1e9,
        "bytes_per_token": workload.bytes_per_token("onnx", tokens),
        "token_ms": median(workload.min_token_ms("onnx", tokens, limits) for limits, _ in repetitions),
        "ttft_ms": median(workload.min_ttft_ms("onnx", tokens, limits) for limits, _ in repetitions),
    }


def time_tokenizer(tokenizer: ChatTokenizer, exports: Path, test: Path, repeats: int) -> Metrics:
    """Speed with one thread on the messages of the test set, and that of tokenizer.bin if it was exported."""
    texts = some_texts(test)
    ids = tokenizer.encode(texts)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    result = {
        "encode_mb_per_s": megabytes / median_seconds(lambda: tokenizer.encode(texts), repeats),
        "decode_mb_per_s": megabytes / median_seconds(lambda: [tokenizer.decode(one) for one in ids], repeats),
    }
    file = exports / "tokenizer.bin"
    return result | (measure_binary(file, repeats) if file.exists() else {})


def some_texts(test: Path) -> list[str]:
    """The first messages and documents of the test set."""
    texts, size = [], 0
    for record in read_records(test):
        is_text = is_document(record.text)
        texts += [unescape(record.text)] if is_text else [message.text for message in parse(record.text)]
        size += len(record.text)
        if size >= TEXT_SIZE:
            break
    return texts


def measure_binary(file: Path, repeats: int) -> Metrics:
    """The time to open tokenizer.bin, and to look up one token in it."""
    opening = median_seconds(lambda: open_binary(file).close(), repeats)
    with open_binary(file) as binary:
        ids = random.Random(0).choices(range(binary.vocab_size), k=LOOKUPS)
        lookups = median_seconds(lambda: [binary.token_bytes(i) for i in ids], repeats)
    return {"lookup_ns": 1e9 * lookups / LOOKUPS, "open_ms": 1e3 * opening}


def median_seconds(action: Callable[[], object], repeats: int) -> float:
    """The median time that an action takes, after a warm-up."""
    times = []
    for _ in range(1 + repeats):
        started = perf_counter()
        action()
        times.append(perf_counter() - started)
    return median(times[1:])


def describe_machine(threads: int) -> Metrics:
    """The processor, its load, and the versions of the libraries."""
    libraries = {name: version(name) for name in ("torch", "onnxruntime")}
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "processor": processor(),
        "threads": threads,
        "load": load,
        "python": platform.python_version(),
        **libraries,
    }


def processor() -> str:
    """The processor's name."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def fitting_lengths(prompt_tokens: Sequence[int], new_tokens: int, context: int) -> list[int]:
    """The lengths of prompts, in order, that leave room for an answer; the others are logged."""
    longest = context - max(new_tokens, RECOMPUTED_TOKENS)
    lengths = sorted(length for length in set(prompt_tokens) if length <= longest)
    if not lengths:
        expected = f"expected one of at most {longest}, the context of {context} less the answer"
        raise ValueError(f"params.yaml: benchmark.prompt_tokens: {expected}, got {list(prompt_tokens)}")
    if left_out := sorted(set(prompt_tokens) - set(lengths)):
        log("benchmark", f"prompts of {left_out} tokens are left out: they do not fit into a context of {context}")
    return lengths


def round_significant(value: Any) -> Any:
    """A number, or all numbers in nested dictionaries, rounded to four significant digits."""
    if isinstance(value, dict):
        return {key: round_significant(item) for key, item in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


@stage
def main(
    test: Path,
    exports: Path,
    model: Path,
    onnx: Path,
    metrics: Output,
    *,
    prompt_tokens: list[PositiveInt],
    new_tokens: PositiveInt,
    repeats: PositiveInt,
    threads: PositiveInt,
) -> None:
    """Time the engines on prompts from the test set, and the tokenizer on its text; write the metrics."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # PyTorch's idle threads do not take time from ONNX Runtime
    machine = describe_machine(threads)
    tokenizer = load_tokenizer(model)
    folders = {"pytorch": model} | dict.fromkeys(engine_names(onnx), onnx)
    engines = [load_engine(folder, name, device="cpu", threads=threads) for name, folder in folders.items()]
    lengths = fitting_lengths(prompt_tokens, new_tokens, engines[0].context)
    *prompts, longest = make_prompts(test, tokenizer, engines[0], [*lengths, engines[0].context])
    workload, cases = read_workload(model, onnx), make_cases(engines, prompts)
    repetitions = time_cases(cases, workload, LimitsProbe(threads), new_tokens, repeats)
    timed = latencies(cases, repetitions, workload)
    for engine, turns in zip(engines, time_turns(engines, longest, repeats), strict=True):
        timed[engine.name]["turn_ms"] = turns
        timed[engine.name]["streaming"] = measure_streaming(engine, tokenizer, prompts[0], repeats)
    for name, folder in progress(folders.items(), "measure memory"):
        timed[name]["peak_memory_mb"] = peak_memory_mb(folder, name, prompt_tokens=lengths[-1], threads=threads)
    content = {"machine": machine, **timed}
    if workload.weights:
        shares = {name: values["cache"][str(lengths[-1])]["reached"]["token"] for name, values in timed.items()}
        content["limit"] = describe_limit(workload, repetitions, lengths[-1]) | {"reached": shares}
    content["tokenizer"] = time_tokenizer(tokenizer, exports, test, repeats)
    metrics.write_text(json.dumps(round_significant(content), indent=1) + "\n", encoding="utf-8")
