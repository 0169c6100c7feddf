"""Measure how fast the tokenizer and the chat model are, with every engine.

`ttft_ms` is the time to the first token, from the prompt's ids to the choice of the likeliest one; `token_ms` that of
each next token. With `cache` the engine keeps what it has read; with `recompute` each token reads the whole sequence
anew. `turn_ms` is the time to read a message of 32 tokens after histories of these lengths, which the cache holds.
Repetitions of all engines alternate, after a warm-up that does not count. `streaming` is the share of a token's time
that goes to choosing it and to making text of it. `limit` is what the machine allows: a token takes at least as long as
reading the weights and the cache.
"""

import json
import os
import platform
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from chatmill.conversation import parse, read_records
from chatmill.engines.engine import Engine
from chatmill.engines.peak_memory import peak_memory_mb
from chatmill.inference.generation import generate
from chatmill.inference.loading import engines, load_engine
from chatmill.inference.sampler import Sampler, Sampling
from chatmill.inference.text_stream import Reply
from chatmill.progress import progress
from chatmill.stage import Output, PositiveInt, stage
from chatmill.template import segments
from chatmill.tokenizer.binary import open_binary
from chatmill.tokenizer.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.loading import load as load_tokenizer

RECOMPUTED = 3  # tokens of a repetition without cache: each reads everything again
RECOMPUTING = ("pytorch", "onnx")
TURN_TOKENS = 32
STREAMED = 200  # tokens of an answer, where they fit
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(temperature=0.8, top_p=0.95)}
READS = 20  # of the buffer that measures the bandwidth
TEXT_SIZE = 500_000  # characters to encode and decode in one repetition
LOOKUPS = 20_000

Values = dict[str, Any]


class Case(NamedTuple):
    """One thing to time: an engine answering a prompt of some length, with its cache or without."""

    engine: Engine
    mode: str
    prompt: list[int]


def answer_ms(case: Case, new_tokens: int) -> list[float]:
    """Milliseconds to the first token, and for each of the next."""
    ids, times = list(case.prompt), []
    case.engine.rewind(0)
    for _ in range(1 + (new_tokens if case.mode == "cache" else RECOMPUTED)):
        started = perf_counter()
        if case.mode == "recompute":
            case.engine.rewind(0)
        ids.append(int(case.engine.append(ids[case.engine.length :]).argmax()))
        times.append(1e3 * (perf_counter() - started))
    return times


def time_engines(opened: Sequence[Engine], prompts: Sequence[list[int]], new_tokens: int, repeats: int) -> Values:
    """Latencies by engine, mode and length of the prompt."""
    cases = [Case(engine, "cache", prompt) for engine in opened for prompt in prompts]
    cases += [
        Case(engine, "recompute", prompt) for engine in opened for prompt in prompts if engine.name in RECOMPUTING
    ]
    times = defaultdict(list)
    for repetition in progress(range(1 + repeats), "time engines"):
        for index, case in enumerate(cases):
            measured = answer_ms(case, new_tokens)
            if repetition:
                times[index].append(measured)
    result: Values = {engine.name: defaultdict(dict) for engine in opened}
    for index, case in enumerate(cases):
        result[case.engine.name][case.mode][str(len(case.prompt))] = {
            "ttft_ms": percentiles([first for first, *_ in times[index]]),
            "token_ms": percentiles(list(chain.from_iterable(rest for _, *rest in times[index]))),
        }
    return result


def time_turns(opened: Sequence[Engine], ids: list[int], repeats: int) -> Iterator[Values]:
    """The milliseconds that each engine takes to read a message after none and after the longest history."""
    histories = (0, len(ids) - TURN_TOKENS)
    times = {(engine.name, history): [] for engine in opened for history in histories}
    for repetition in progress(range(1 + repeats), "time turns"):
        for engine in opened:
            engine.rewind(0)
            for history in histories:
                if history:
                    engine.append(ids[engine.length : history])
                started = perf_counter()
                engine.append(ids[history : history + TURN_TOKENS])
                if repetition:
                    times[engine.name, history].append(1e3 * (perf_counter() - started))
    for engine in opened:
        yield {str(history): percentiles(times[engine.name, history]) for history in histories}


class Timed:
    """An engine that tells how long it was at work."""

    def __init__(self, engine: Engine) -> None:
        self.context, self._engine, self.seconds = engine.context, engine, 0.0

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self._engine.length

    def append(self, ids: Sequence[int]) -> np.ndarray:
        """What the engine answers."""
        started = perf_counter()
        logits = self._engine.append(ids)
        self.seconds += perf_counter() - started
        return logits


def measure_streaming(engine: Engine, tokenizer: ChatTokenizer, prompt: list[int], repeats: int) -> Values:
    """The share of an answer's time that is not the engine's, by the way tokens are chosen."""
    shares = defaultdict(list)
    for repetition in range(1 + repeats):
        for name, sampling in SAMPLINGS.items():
            engine.rewind(0)
            engine.append(prompt[:-1])
            timed, sampler, reply = Timed(engine), Sampler(tokenizer.is_text, sampling), Reply(tokenizer)
            started = perf_counter()
            for token in generate(timed, prompt[-1:], sampler=sampler, stop_ids=(), max_tokens=STREAMED):
                reply.push(token)
            if repetition:
                shares[name].append(1 - timed.seconds / (perf_counter() - started))
    return {name: median(values) for name, values in shares.items()}


def percentiles(values: Sequence[float]) -> Values:
    """The median, and what 19 of 20 stay under."""
    return {f"p{share}": float(np.percentile(values, share)) for share in (50, 95)}


def make_prompts(test: Path, tokenizer: ChatTokenizer, engine: Engine, lengths: Sequence[int]) -> Iterator[list[int]]:
    """Prompts of these lengths, from the conversations in a row, as often as needed."""
    records = read_records(test)
    conversations = [
        segments(parse(record.text), engine.template) for record, _ in zip(records, range(100), strict=False)
    ]
    ids = tokenizer.encode_conversations(conversations).ids.tolist()
    if not ids:
        raise ValueError(f"{test}: no conversations to make prompts of")
    for length in lengths:
        yield (ids * (1 + length // len(ids)))[:length]


def measure_limit(model: Path, prompt_tokens: int, threads: int) -> Values:
    """What each token reads after a prompt, and how fast this machine reads that much.

    Weights that fit into the processor's caches are thus held against these, not against its memory.
    """
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    heads = config["num_hidden_layers"] * config["num_key_value_heads"]
    cache = prompt_tokens * heads * config["head_dim"] * 2 * np.dtype(np.float32).itemsize
    total = (model / "model.safetensors").stat().st_size + cache
    per_second = bandwidth(total, threads)
    return {"bandwidth_gb_per_s": per_second / 1e9, "bytes_per_token": total, "token_ms": 1e3 * total / per_second}


def bandwidth(size: int, threads: int) -> float:
    """Bytes that threads read from a buffer of this size, a second; the best of READS."""
    parts = np.array_split(np.ones(-(-size // 8), np.int64), threads)
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(READS):
            started = perf_counter()
            list(pool.map(np.max, parts))
            best = min(best, perf_counter() - started)
    return size / best


def measure_tokenizer(tokenizer: ChatTokenizer, exports: Path, test: Path, repeats: int) -> Values:
    """Speed on the messages of the test set, one thread; and of tokenizer.bin, where it was exported."""
    texts = some_texts(test)
    ids = tokenizer.encode(texts)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    result = {
        "encode_mb_per_s": megabytes / seconds(lambda: tokenizer.encode(texts), repeats),
        "decode_mb_per_s": megabytes / seconds(lambda: [tokenizer.decode(one) for one in ids], repeats),
    }
    file = exports / "tokenizer.bin"
    return result | (measure_binary(file, repeats) if file.exists() else {})


def some_texts(test: Path) -> list[str]:
    """The first messages of the test set."""
    texts, size = [], 0
    for record in read_records(test):
        texts += [message.text for message in parse(record.text)]
        size += len(record.text)
        if size >= TEXT_SIZE:
            break
    return texts


def measure_binary(file: Path, repeats: int) -> Values:
    """Opening tokenizer.bin, and looking one token up in it."""
    opening = seconds(lambda: open_binary(file).close(), repeats)
    with open_binary(file) as binary:
        ids = random.Random(0).choices(range(binary.vocab_size), k=LOOKUPS)
        lookups = seconds(lambda: [binary.token_bytes(i) for i in ids], repeats)
    return {"lookup_ns": 1e9 * lookups / LOOKUPS, "open_ms": 1e3 * opening}


def seconds(action: Callable[[], object], repeats: int) -> float:
    """The median time that an action takes, after a warm-up."""
    times = []
    for _ in range(1 + repeats):
        started = perf_counter()
        action()
        times.append(perf_counter() - started)
    return median(times[1:])


def describe_machine(threads: int) -> Values:
    """What the numbers were measured on."""
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


def fitting(prompt_tokens: Sequence[int], new_tokens: int, context: int) -> list[int]:
    """The lengths of prompts, least first, that leave room for an answer; the others are told on stderr."""
    lengths = sorted(length for length in set(prompt_tokens) if length + max(new_tokens, RECOMPUTED) <= context)
    if not lengths:
        room = f"no length leaves room for {new_tokens} tokens in a context of {context}"
        raise ValueError(f"params.yaml: benchmark.prompt_tokens: {room}")
    if left_out := sorted(set(prompt_tokens) - set(lengths)):
        print(f"benchmark: prompts of {left_out} tokens do not fit into a context of {context}", file=sys.stderr)
    return lengths


def rounded(value: Any) -> Any:
    """Numbers with as many digits as mean something, in whatever they stand."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
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
    """Time the engines on prompts from the test set, and the tokenizer on its text; write what was measured."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # PyTorch's idle threads leave the processor to ONNX Runtime's
    machine = describe_machine(threads)
    tokenizer = load_tokenizer(model)
    folders = {"pytorch": model} | dict.fromkeys(engines(onnx), onnx)
    opened = [load_engine(folder, name, device="cpu", threads=threads) for name, folder in folders.items()]
    lengths = fitting(prompt_tokens, new_tokens, opened[0].context)
    *prompts, longest = make_prompts(test, tokenizer, opened[0], [*lengths, opened[0].context])
    timed = time_engines(opened, prompts, new_tokens, repeats)
    for engine, turns in zip(opened, time_turns(opened, longest, repeats), strict=True):
        timed[engine.name]["turn_ms"] = turns
        timed[engine.name]["streaming"] = measure_streaming(engine, tokenizer, prompts[0], repeats)
    for name, folder in progress(folders.items(), "measure memory"):
        timed[name]["peak_memory_mb"] = peak_memory_mb(folder, name, prompt_tokens=lengths[-1], threads=threads)
    limit = measure_limit(model, lengths[-1], threads)
    reached = {
        name: limit["token_ms"] / values["cache"][str(lengths[-1])]["token_ms"]["p50"] for name, values in timed.items()
    }
    content = {
        "machine": machine,
        **timed,
        "limit": limit | {"reached": reached},
        "tokenizer": measure_tokenizer(tokenizer, exports, test, repeats),
    }
    metrics.write_text(json.dumps(rounded(content), indent=1) + "\n", encoding="utf-8")
