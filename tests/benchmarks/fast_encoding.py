"""Encoding many short texts with the extra `fast`, as a multiple of the speed of bare fastokens, and equal ids.

    RAYON_NUM_THREADS=1 taskset -c 0 python tests/benchmarks/fast_encoding.py FILE [FILE ...] [--vocab-size N]

FILE is text; its lines are one list. A tokenizer of the type bpe with the pattern qwen2 is trained on some 20,000 of
them. Both sides give the ids as one array, with the offsets of the lines; `lists` are Python's lists of ids in place
of the array. Competitors take turns, after fastokens has replaced tiktoken; times are medians.
"""

import argparse
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))

import fastokens
import numpy as np

from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.types import bpe
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens
from chatmill.tokenizer.vocabulary.tokenizer_json import to_json

TRAINING = 20_000  # lines
ROUNDS = 15
BEFORE = 3_000_000  # characters that are encoded before, so that fastokens has taken over


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--vocab-size", type=int, default=4096)
    options = parser.parse_args()
    lines = [line for file in options.files for line in file.read_text(encoding="utf-8").splitlines()]
    vocabulary = add_special_tokens(
        bpe.train(lines[:: 1 + len(lines) // TRAINING], options.vocab_size, bpe.Settings()), []
    )
    tokenizer = ChatTokenizer(vocabulary)
    bare = fastokens.Tokenizer.from_json_str(to_json(vocabulary))

    def encode_bare() -> tuple[np.ndarray, np.ndarray]:
        ids, offsets = bare.encode_batch_flat(lines, split_special_tokens=True)
        return np.frombuffer(ids, np.uint32), np.frombuffer(offsets, np.uint64)

    actions = {
        "bare fastokens": encode_bare,
        "encode_flat": lambda: tokenizer.encode_flat(lines),
        "lists": lambda: tokenizer.encode(lines),
    }
    size = sum(map(len, lines))
    for _ in range(1 + BEFORE // size):
        tokenizer.encode_flat(lines)
    equal = all(map(np.array_equal, encode_bare(), tokenizer.encode_flat(lines)))
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(ROUNDS):
        for name, action in actions.items():
            action()  # refills the caches after the others
            started = perf_counter()
            action()
            seconds[name].append(perf_counter() - started)
    print(f"{len(lines):,} lines, {size:,} characters, ids equal: {equal}")
    for name, times in seconds.items():
        ratios = sorted(one / other for one, other in zip(seconds["bare fastokens"], times, strict=True))
        spread = f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"{name:16} {size / median(times) / 1e6:8.1f} M characters/s   {spread}")


if __name__ == "__main__":
    main()
