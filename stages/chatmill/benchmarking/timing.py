"""What engines are timed on, and the speed of a tokenizer."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from chatmill.benchmarking.latency import RECOMPUTED_TOKENS, Metrics, median_seconds, percentiles
from chatmill.conversation import is_document, parse, record_segments, unescape
from chatmill.engines.engine import Engine
from chatmill.inference.chat_template import CHATMILL_TEMPLATES
from chatmill.inference.sampler import Generation, IncrementalDetokenizer, Sampler, Sampling
from chatmill.pipeline.progress import log, progress
from chatmill.record_files import read_records
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.binary import BinaryTokenizer

# What the engines are timed on: prompts of given lengths, turns after a history, and streamed answers.

TURN_TOKENS = 32
STREAMED = 64  # tokens of an answer, at most
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(temperature=0.8, top_p=0.95)}


def time_turns(engines: Sequence[Engine], ids: list[int], repeats: int) -> Iterator[Metrics]:
    """The milliseconds that each engine takes to read a message without a history and after the longest one that fits.

    Where the context is shorter than a message, there are none, which is logged.
    """
    histories = sorted({0, len(ids) - TURN_TOKENS}) if len(ids) >= TURN_TOKENS else []
    if not histories:
        log("benchmark", f"turn_ms is left out: a message of {TURN_TOKENS} tokens does not fit into the context")
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    for repetition in progress(range(1 + repeats), "time turns"):
        for engine in engines:
            for history in histories:
                engine.rewind(min(history, engine.length))
                if engine.length < history:
                    engine.append(ids[engine.length : history])
                started = perf_counter()
                engine.append(ids[history : history + TURN_TOKENS])
                if repetition:
                    times[engine.name, history].append(1e3 * (perf_counter() - started))
    for engine in engines:
        yield {str(history): percentiles(times[engine.name, history]) for history in histories}


def measure_streaming(engine: Engine, tokenizer: ChatTokenizer, prompt: list[int], repeats: int) -> Metrics:
    """The share of an answer's time outside the engine, by the sampling method."""
    shares = defaultdict(list)
    for repetition in range(1 + repeats):
        for name, sampling in SAMPLINGS.items():
            engine.rewind(0)
            if prompt[1:]:
                engine.append(prompt[:-1])
            reply, in_engine, started = IncrementalDetokenizer(tokenizer), 0.0, perf_counter()
            generation = Generation(
                prompt[-1:],
                remaining_context=engine.context - len(prompt),
                sampler=Sampler(tokenizer.is_text, sampling),
                stop_ids=(),
                max_tokens=STREAMED,
            )
            while not generation.done:
                called = perf_counter()
                logits = engine.append(generation.pending)
                in_engine += perf_counter() - called
                for token in generation.step(logits):
                    reply.push(token)
            if repetition:
                shares[name].append(1 - in_engine / (perf_counter() - started))
    return {name: median(values) for name, values in shares.items()}


def make_prompts(
    test: Path, tokenizer: ChatTokenizer, engine: Engine, lengths: Sequence[int], longest: int
) -> Iterator[list[int]]:
    """Prompts of these lengths, and one with a message after the longest history, from test conversations."""
    name = CHATMILL_TEMPLATES[engine.template].name
    conversations = [record_segments(record, name) for record in islice(read_records(test), 100)]
    ids = tokenizer.encode_conversations(conversations).ids.tolist()
    if not ids:
        raise ValueError(f"{test}: no conversations for prompts: raise mix.test_share, or add data")
    for length in (*lengths, min(engine.context, max(longest, 2 * TURN_TOKENS) + TURN_TOKENS)):
        yield (ids * (1 + length // len(ids)))[:length]


def fitting_lengths(prompt_tokens: Sequence[int], new_tokens: int, context: int) -> list[int]:
    """The lengths of prompts, in order, that leave room for an answer; the others are logged."""
    answer = max(new_tokens, RECOMPUTED_TOKENS)
    lengths = sorted(length for length in set(prompt_tokens) if length + answer <= context)
    if left_out := sorted(set(prompt_tokens) - set(lengths)):
        room = f"with an answer of {answer} they do not fit into a context of {context}"
        remedy = "" if lengths else "; the model is not timed: lower benchmark.prompt_tokens or benchmark.new_tokens"
        log("benchmark", f"prompts of {', '.join(map(str, left_out))} tokens are left out: {room}{remedy}")
    return lengths


def round_significant(value: Any) -> Any:
    """A number, or all numbers in nested dictionaries, rounded to four significant digits."""
    if isinstance(value, dict):
        return {key: round_significant(item) for key, item in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


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
    file = exports / "tokenizer.bin"
    return result | (measure_binary(file, repeats) if file.exists() else {})


def some_texts(test: Path) -> list[str]:
    texts, size = [], 0
    for record in read_records(test):
        is_text = is_document(record.text)
        texts += [unescape(record.text)] if is_text else [message.text for message in parse(record.text)]
        size += len(record.text)
        if size >= TEXT_SIZE:
            break
    return texts


def measure_binary(file: Path, repeats: int) -> Metrics:
    opening = median_seconds(lambda: BinaryTokenizer(file).close(), repeats)
    with closing(BinaryTokenizer(file)) as binary:
        ids = random.Random(0).choices(range(binary.vocab_size), k=LOOKUPS)
        lookups = median_seconds(lambda: [binary.token_bytes(i) for i in ids], repeats)
    return {"lookup_ns": 1e9 * lookups / LOOKUPS, "open_ms": 1e3 * opening}
