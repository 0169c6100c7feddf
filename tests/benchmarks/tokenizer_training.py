"""The time and memory to train byte-level BPE, compared with other libraries.

    python tests/benchmarks/tokenizer_training.py FILE [VOCAB_SIZE [PATTERN]]

FILE is plain text, each line a document that is streamed. The trainers take turns, each in processes of its own; the
time is the best of several runs without the start of the process, the memory is the peak. The environment variable
RAYON_NUM_THREADS sets the threads of all three.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))

import rustbpe
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from chatmill.benchmarking.latency import peak_bytes
from chatmill.tokenizer.types import bpe
from chatmill.tokenizer.vocabulary.patterns import PATTERNS

ROUNDS = 3


def chatmill(texts: Iterator[str], vocab_size: int, pattern: str) -> int:
    """The training of the stage train_tokenizer, to its merges and their scores."""
    return len(bpe.train(texts, vocab_size, bpe.Settings(pattern=pattern)).tokens)


def bare_rustbpe(texts: Iterator[str], vocab_size: int, pattern: str) -> int:
    """The training of rustbpe, to its ranks."""
    tokenizer = rustbpe.Tokenizer()
    tokenizer.train_from_iterator(texts, vocab_size, pattern=PATTERNS[pattern])
    return len(tokenizer.get_mergeable_ranks())


def bare_tokenizers(texts: Iterator[str], vocab_size: int, pattern: str) -> int:
    """The trainer of Hugging Face's tokenizers."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERNS[pattern]), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.get_vocab_size()


TRAINERS = {"rustbpe": bare_rustbpe, "chatmill": chatmill, "tokenizers": bare_tokenizers}


def train(name: str, file: str, vocab_size: str, pattern: str) -> None:
    """Train once, and print tokens, seconds and peak bytes."""
    with open(file, encoding="utf-8") as lines:
        start = perf_counter()
        tokens = TRAINERS[name](lines, int(vocab_size), pattern)
        print(json.dumps([tokens, perf_counter() - start, peak_bytes()]))


def main(file: str, vocab_size: str = "32768", pattern: str = "qwen2") -> None:
    """Print one row for each trainer."""
    results: dict[str, list[tuple[int, float, int]]] = {name: [] for name in TRAINERS}
    for _ in range(ROUNDS):
        for name in TRAINERS:
            command = [sys.executable, __file__, "--train", name, file, vocab_size, pattern]
            results[name].append(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))
    megabytes = Path(file).stat().st_size / 1e6
    bare = min(seconds for _, seconds, _ in results["rustbpe"])
    print(f"{megabytes:.1f} MB, pattern {pattern}")
    print(f"{'trainer':12}{'tokens':>8}{'s':>8}{'MB/s':>8}{'x rustbpe':>11}{'peak MB':>9}")
    for name, runs in results.items():
        seconds, peak = min(run[1] for run in runs), max(run[2] for run in runs) / 1e6
        print(f"{name:12}{runs[0][0]:8}{seconds:8.2f}{megabytes / seconds:8.1f}{seconds / bare:11.3f}{peak:9.0f}")


if __name__ == "__main__":
    train(*sys.argv[2:]) if sys.argv[1] == "--train" else main(*sys.argv[1:])
