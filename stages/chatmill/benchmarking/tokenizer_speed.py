"""The speed of a tokenizer: encoding and decoding with one thread, and opening and reading tokenizer.bin."""

import random
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

from chatmill.benchmarking.latency import (
    Metrics,
)
from chatmill.conversation import is_document, parse, unescape
from chatmill.record_files import read_records
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.binary import open_binary

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
