"""Measure how fast the tokenizer and the chat model are, with every engine.

`ttft_ms` is the time to the first token, from the prompt's ids to the choice of the likeliest one; `token_ms` that of
each next token. With `cache` the engine keeps what it has read; with `recompute` each token reads the whole sequence
anew. `turn_ms` is the time to read a message of 32 tokens after histories of these lengths, which the cache holds.
Repetitions of all engines alternate, after a warm-up that does not count; `spread` is the slowest of them as a multiple
of the fastest. `limit` is what the machine allows the same threads, measured in each repetition, and `reached` is the
share of it: a token takes at least as long as reading the weights and the cache. `streaming` is the share of a token's
time that goes to choosing it and to making text of it.
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

from chatmill.benchmarking.latency import RECOMPUTED, Round, Values, latencies, make_cases, percentiles, time_cases
from chatmill.benchmarking.limits import Meter, Needs, weight_bytes
from chatmill.benchmarking.peak_memory import peak_memory_mb
from chatmill.conversation.chatml import parse, read_records
from chatmill.conversation.template import segments
from chatmill.engines.engine import ONNX_FILES, Engine
from chatmill.inference.chat_template import OWN
from chatmill.inference.generation import generate
from chatmill.inference.loading import engines, load_engine
from chatmill.inference.sampler import Sampler, Sampling
from chatmill.inference.text_stream import Reply
from chatmill.pipeline.parameters import PositiveInt
from chatmill.pipeline.progress import log, progress
from chatmill.pipeline.signatures import Output
from chatmill.pipeline.stage import stage
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.binary import open_binary
from chatmill.tokenizer.formats.loading import load as load_tokenizer

TURN_TOKENS = 32
STREAMED = 200  # tokens of an answer, where they fit
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(temperature=0.8, top_p=0.95)}
TEXT_SIZE = 500_000  # characters to encode and decode in one repetition
LOOKUPS = 20_000


def time_turns(opened: Sequence[Engine], ids: list[int], repeats: int) -> Iterator[Values]:
    """The milliseconds that each engine takes to read a message after none and after the longest history."""
    histories = (0, len(ids) - TURN_TOKENS)
    times: dict[tuple[str, int], list[float]] = {
        (engine.name, history): [] for engine in opened for history in histories
    }
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


def make_prompts(test: Path, tokenizer: ChatTokenizer, engine: Engine, lengths: Sequence[int]) -> Iterator[list[int]]:
    """Prompts of these lengths, from the conversations in a row, as often as needed."""
    records = read_records(test)
    conversations = [
        segments(parse(record.text), OWN[engine.template].name) for record, _ in zip(records, range(100), strict=False)
    ]
    ids = tokenizer.encode_conversations(conversations).ids.tolist()
    if not ids:
        raise ValueError(f"{test}: no conversations to make prompts of")
    for length in lengths:
        yield (ids * (1 + length // len(ids)))[:length]


def read_needs(model: Path, onnx: Path) -> Needs:
    """What a token needs with each engine; PyTorch reads what the float32 graph does; unknown without a graph."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    weights = {name: weight_bytes(onnx / ONNX_FILES[name]) for name in engines(onnx)}
    return Needs(config, {"pytorch": weights["onnx"]} | weights if weights else {})


def describe_limit(needs: Needs, rounds: Sequence[Round], tokens: int) -> Values:
    """What the machine allows the float32 model after so many tokens."""
    return {
        "bandwidth_gb_per_s": median(limits.bandwidths[needs.weights["onnx"]] for limits, _ in rounds) / 1e9,
        "matrix_gflop_per_s": median(limits.matrix_rate for limits, _ in rounds) / 1e9,
        "bytes_per_token": needs.num_bytes("onnx", tokens),
        "token_ms": median(needs.token_ms("onnx", tokens, limits) for limits, _ in rounds),
        "ttft_ms": median(needs.ttft_ms("onnx", tokens, limits) for limits, _ in rounds),
    }


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
        log("benchmark", f"prompts of {left_out} tokens do not fit into a context of {context}")
    return lengths


def significant(value: Any) -> Any:
    """The value with the digits of its numbers that mean something, in whatever dictionaries they stand."""
    if isinstance(value, dict):
        return {key: significant(item) for key, item in value.items()}
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
    needs, cases = read_needs(model, onnx), make_cases(opened, prompts)
    rounds = time_cases(cases, needs, Meter(threads), new_tokens, repeats)
    timed = latencies(cases, rounds, needs)
    for engine, turns in zip(opened, time_turns(opened, longest, repeats), strict=True):
        timed[engine.name]["turn_ms"] = turns
        timed[engine.name]["streaming"] = measure_streaming(engine, tokenizer, prompts[0], repeats)
    for name, folder in progress(folders.items(), "measure memory"):
        timed[name]["peak_memory_mb"] = peak_memory_mb(folder, name, prompt_tokens=lengths[-1], threads=threads)
    content = {"machine": machine, **timed}
    if needs.weights:
        shares = {name: values["cache"][str(lengths[-1])]["reached"]["token"] for name, values in timed.items()}
        content["limit"] = describe_limit(needs, rounds, lengths[-1]) | {"reached": shares}
    content["tokenizer"] = measure_tokenizer(tokenizer, exports, test, repeats)
    metrics.write_text(json.dumps(significant(content), indent=1) + "\n", encoding="utf-8")
