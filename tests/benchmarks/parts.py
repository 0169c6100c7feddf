"""Training on tokens in parts, compared with the same tokens in whole files: tokens per second.

    python tests/benchmarks/parts.py FORMAT=FILE … [--parts N] [--depth D] [--threads N] [--turns N]

The tokens are divided into so many parts, which lie in a store, a folder; of what is read from it, as much as a third
of the tokens is kept. Both train in one process, taking turns of two seconds; not compiled. With more than 16 parts the
order of the conversations is another one.
"""

import argparse
import os
import sys
from pathlib import Path
from statistics import quantiles
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from learning import Chatmill, Data, prepared, source

import encode
from chatmill.checkpoints.configuration import ModelConfig
from chatmill.encoded.token_files import read_split

CONTEXT, VOCAB_SIZE = 512, 4096
TURN = 2.0  # seconds
STEPS = 1000  # of the schedule


def speed(learner: Chatmill) -> float:
    """Tokens a second of one turn."""
    start, tokens = perf_counter(), 0
    while (took := perf_counter() - start) < TURN:
        tokens += learner.step(3, STEPS).useful
    return tokens / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sources", nargs="+", type=source, metavar="FORMAT=FILE")
    parser.add_argument("--parts", type=int, default=48)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with prepared(dict(options.sources), VOCAB_SIZE, validation_share=0.01) as name:
        whole, divided = Path(name), Path(name, "divided")
        os.chdir(whole)
        tokens = len(read_split(whole / "tokens", "train").ids)
        os.environ["CHATMILL_STORE"] = f"file://{whole}/store"
        os.environ["CHATMILL_STORE_CACHE_GB"] = f"{3 * tokens / 3 / 1e9}"  # three bytes for each token
        divided.mkdir()
        (divided / "tokenizer").symlink_to(whole / "tokenizer")
        chats = whole / "train.jsonl", whole / "validation.jsonl"
        part_tokens = -(-tokens // options.parts)
        encode.main(*chats, whole / "tokenizer", divided / "tokens", template="chatml", part_tokens=part_tokens)
        learners = []
        for folder in (divided, whole):
            data = Data(folder)
            config = ModelConfig.from_depth(options.depth, vocab_size=data.vocab_size, context=CONTEXT)
            learners.append(Chatmill(data, config, TURN, compile=False, start="random"))
        for learner in learners:
            learner.step(3, STEPS)
        ratios = np.array([[speed(learner) for learner in learners] for _ in range(options.turns)])
        low, middle, high = quantiles(ratios[:, 0] / ratios[:, 1], n=4)
        print(f"{tokens:,} tokens in {options.parts} parts: {middle:.3f} times as fast as whole files,", end=" ")
        print(f"in half of {options.turns} turns {low:.3f} to {high:.3f}")


if __name__ == "__main__":
    main()
