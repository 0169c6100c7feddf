"""How much the default model's bits per byte vary with the seed, and how often verdicts on such runs are right.

    python tests/benchmarks/seed_noise.py train [--seeds N] [--steps N] [--processes N]     # after dvc repro
    python tests/benchmarks/seed_noise.py

`train` trains the default model on data/tokens with each seed, for as many steps as take half a minute, and keeps the
nats of each of some conversations of the test set in seed_noise.npz, in the folder of the tests of verdicts. Without
it the verdicts on the kept runs are counted: of all pairs, how many are called different, though they differ by their
seed alone; and of random draws of some seeds on each side, one of which is then given less nats by some percent, how
many are. It prints the relative standard deviation, which is SEED_NOISE of chatmill.app.verdict.
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))

import numpy as np
import yaml

import train_model
from chatmill.app.measurement import ScoredDocument, measure
from chatmill.app.verdict import SEED_NOISE, bits_difference
from chatmill.evaluation.held_out_set import sample_test_set
from chatmill.evaluation.intervals import wilson
from chatmill.inference.model_loading import load_model

FILE = Path(__file__).parents[1] / "app/seed_noise.npz"
CONVERSATIONS = 1000
DRAWS = 400
MAX_SEEDS = 10  # on each side


def nats_of_seed(seed: int, steps: int) -> np.ndarray:
    """(C,) the nats of each conversation under a model that was trained with a seed."""
    data, parameters = Path("data"), yaml.safe_load(Path("params.yaml").read_text())["train_model"]
    parameters |= {"seed": seed, "steps": steps, "threads": 1, "compile": False}
    with TemporaryDirectory() as folder:
        model = Path(folder, "model")
        inputs = (data / "tokens", data / "tokenizer", data / "teacher", data / "raw/external/initial")
        train_model.main(*inputs, model, Path(folder, "train.tsv"), parameters=parameters)
        records = sample_test_set(data / "chat/test.jsonl", CONVERSATIONS, 0, 0).test.records
        documents = [ScoredDocument(Path("test"), record.source, record) for record in records]
        return measure(load_model(model, "cpu", 1), documents).sums["all"][0]


def train(seeds: int, steps: int, processes: int) -> None:
    """Train with each seed, and keep the nats."""
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        runs = list(pool.map(nats_of_seed, range(1, seeds + 1), [steps] * seeds))
    np.savez_compressed(FILE, nats=np.array(runs, np.float32))


def called_different(runs: np.ndarray) -> list[bool]:
    """Whether the two runs of each pair are called different."""
    return [bits_difference([a], [b]).is_clear for a, b in combinations(runs, 2)]


def found(runs: np.ndarray, change: float, per_side: int, draws: int = DRAWS) -> list[bool]:
    """Whether a change of one side's nats is found, in random draws of seeds for both."""
    random, result = np.random.default_rng(1), []
    for _ in range(draws):
        chosen = runs[random.permutation(len(runs))[: 2 * per_side]]
        difference = bits_difference(list(chosen[:per_side]), list((1 - change) * chosen[per_side:]))
        result.append(difference.is_clear and difference.value < 0)
    return result


def share_line(name: str, outcomes: list[bool]) -> str:
    low, high = wilson(sum(outcomes), len(outcomes))
    return f"{name}: {np.mean(outcomes):.1%} [{low:.1%}, {high:.1%}] of {len(outcomes)}"


def count() -> None:
    """Print what the verdicts on the kept runs are."""
    runs = np.load(FILE)["nats"].astype(np.float64)
    totals = runs.sum(axis=1)
    print(f"{len(runs)} seeds, {runs.shape[1]} conversations: relative standard deviation")
    print(f"{totals.std(ddof=1) / totals.mean():.5f} (SEED_NOISE is {SEED_NOISE})")
    print(share_line("pairs of seeds that are called different", called_different(runs)))
    for change in (0.02, 0.01):
        for per_side in range(1, min(MAX_SEEDS, len(runs) // 2) + 1):
            outcomes = found(runs, change, per_side)
            print(share_line(f"a change of {change:.0%} is found with {per_side} on each side", outcomes))
            if np.mean(outcomes) >= 0.8 and per_side >= 3:
                break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", nargs="?", choices=["train", "count"], default="count")
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--steps", type=int, default=75)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if options.action == "train":
        train(options.seeds, options.steps, options.processes)
    count()


if __name__ == "__main__":
    main()
