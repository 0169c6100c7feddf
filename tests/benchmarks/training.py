"""Training in a given time, compared with what a user might use instead, on the same tokens.

    python tests/benchmarks/training.py FORMAT=FILE … [--minutes M | --steps N] [--depth D] [--threads N] [--seeds N]
                                        [--tokenizer TYPE] [--teacher MODEL] [--only NAME …] [--quick]

`chatmill` is what the stage train_model does, with prompt_loss_weight 1, since all text is measured; its default, 0.1,
is a row of its own. With a teacher it also learns from n-grams of up to five tokens, or from a model; to score the
training set is not in the time. If one of the sources is `documents`, a row reads these alone in the first three tenths
of the steps. `plain` is the GPT-2 architecture as nanoGPT trains it: AdamW, cosine decay, clipped gradients, random
windows over all tokens. `transformers` is Qwen3ForCausalLM of chatmill's shape as its Trainer trains it: AdamW, linear
decay, padded batches. The rate and precision of these two are those that gave the fewest bits per byte in a tenth of
the time; a step has about 4,096 tokens. Schedules span the time, or with `--steps` that many
steps, so that what else the machine does changes no bits per byte. The time includes compiling, except where code for
the shape was compiled before: it is in the first row of chatmill, and of chatmill with a teacher.
Each runs in its own process.

With several seeds there is a row for each, and they take turns: all with the first seed, then all with the next. In
the end come the means, ± half of the distance between the extremes. `counted n-grams` are counted on the same tokens,
of the order that is best on the held-out text; `xz` is what the held-out text adds to the training text that xz
compresses.

Then they take turns of seconds, to measure how many times as fast one is although the speed of the machine varies.

Tokens/s leave out padding; `middle` is the range of eight in ten steps. Bits per byte are of held-out conversations,
each read from its own start. Memory is the peak of the process.
"""

import argparse
import json
import lzma
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from statistics import mean, quantiles
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
import torch.nn.functional as F
from learning import BATCH, Chatmill, Count, Data, Learner, measure, prepared, run, source
from torch import Tensor, nn

from chatmill.checkpoints.configuration import ModelConfig, to_hugging_face
from chatmill.evaluation.ngram import nats_by_order
from chatmill.processor import own_processor
from chatmill.tokenizer.type_registry import type_names

RATES = (1e-3, 2e-3, 4e-3)
PRECISIONS = ("bfloat16", "float32")
TRIAL = 1 / 10  # of the time
TURN, TURNS = 1 / 60, 12  # of the time
STEPS = 1000  # of the schedule meanwhile
GUESS = 0.1  # seconds of a step
WARM_UP = 1 / 50  # of the steps
OURS = {
    "chatmill": {},
    "chatmill, prompts 0.1": {"prompt_weight": 0.1},
    "chatmill, random start": {"start": "random"},
    "chatmill, n-gram teacher": {"teacher": {"ngram_order": 5}},
}
RATED = [(rate, PRECISIONS[0]) for rate in RATES] + [(RATES[1], PRECISIONS[1])]
OTHERS = {  # what they are tried with
    kind: {f"{rate:g} {precision}": {"rate": rate, "precision": precision} for rate, precision in RATED}
    for kind in ("plain", "transformers")
}
ROWS = [*OURS, *OTHERS]
ROW = f"{'':28}{'weights':>9}{'tokens/s':>10}{'middle':>16}{'with padding':>14}{'all':>8}{'assistant':>11}{'MB':>7}"


class Block(nn.Module):
    """Attention and feed-forward as in GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        parts = self.attend(self.norms[0](x)).chunk(3, dim=-1)
        heads = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.project(y.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.widen(self.norms[1](x))))


class Gpt2(nn.Module):
    """Learned positions, biases and a tied head."""

    def __init__(self, vocab_size: int, context: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                narrow = name.endswith(("project.weight", "narrow.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * depth) if narrow else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, V)."""
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


class Plain:
    """GPT-2 as nanoGPT trains it."""

    def __init__(self, data: Data, config: ModelConfig, rate: float, precision: str, seed: int = 1) -> None:
        torch.manual_seed(seed)
        self.random, self.rate, self.precision = np.random.default_rng(seed), rate, precision
        self.ids, self.context = torch.from_numpy(data.train.ids.astype(np.int64)), config.max_position_embeddings
        heads, depth = config.num_attention_heads, config.num_hidden_layers
        self.model = Gpt2(data.vocab_size, self.context, config.hidden_size, heads, depth)
        weights = list(self.model.parameters())
        decay = [{"params": [w for w in weights if w.ndim == n], "weight_decay": d} for n, d in ((2, 0.1), (1, 0.0))]
        self.optimizer = torch.optim.AdamW(decay, lr=rate, betas=(0.9, 0.95))

    def step(self, done: int, steps: int) -> Count:
        starts = self.random.integers(len(self.ids) - self.context, size=BATCH // self.context)
        rows = torch.stack([self.ids[start : start + self.context + 1] for start in starts])
        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bfloat16"):
            loss = F.cross_entropy(self.model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        warm = min(1.0, (done + 1) / (WARM_UP * steps))
        learn(self, loss, warm * (0.1 + 0.45 * (1 + math.cos(math.pi * done / steps))))
        return Count(rows[:, 1:].numel(), rows[:, 1:].numel())

    def logits(self, ids: Tensor) -> Tensor:
        return self.model(ids)


class Transformers:
    """Qwen3ForCausalLM as transformers' Trainer trains it."""

    def __init__(self, data: Data, config: ModelConfig, rate: float, precision: str, seed: int = 1) -> None:
        from transformers import Qwen3Config, Qwen3ForCausalLM  # so that only this process takes its memory

        torch.manual_seed(seed)
        self.split, self.seed, self.context = data.train, seed, config.max_position_embeddings
        self.rate, self.precision, self.pad = rate, precision, data.special["<|pad|>"]
        shape = to_hugging_face(config) | {"attn_implementation": "sdpa", "use_cache": False}
        self.model = Qwen3ForCausalLM(Qwen3Config(**shape))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, weight_decay=0.0)
        lengths = np.minimum(np.diff(self.split.offsets), self.context)
        self.rows = round(BATCH / lengths.mean())
        self.order = self.epochs(len(lengths))

    def epochs(self, length: int) -> Iterator[int]:
        random = np.random.default_rng(self.seed)
        while True:
            yield from random.permutation(length)

    def step(self, done: int, steps: int) -> Count:
        starts = [self.split.offsets[i : i + 2] for i, _ in zip(self.order, range(self.rows), strict=False)]
        rows = [torch.from_numpy(self.split.ids[a : min(b, a + self.context)].astype(np.int64)) for a, b in starts]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.pad)
        mask = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bfloat16"):
            loss = self.model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss
        learn(self, loss, min((done + 1) / (WARM_UP * steps), 1 - done / steps))
        return Count(int(mask.sum()), ids.numel())

    def logits(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids).logits


def learn(learner: Plain | Transformers, loss: Tensor, share: float) -> None:
    """Make one step of AdamW at a fraction of the rate."""
    for group in learner.optimizer.param_groups:
        group["lr"] = share * learner.rate
    loss.backward()
    nn.utils.clip_grad_norm_(learner.model.parameters(), 1.0)
    learner.optimizer.step()
    learner.optimizer.zero_grad(set_to_none=True)


def train(folder: str, seconds: float, context: int, limit: int | None = None, **options: Any) -> dict[str, Any]:
    """Train one of them, and return the results."""
    data = Data(Path(folder))
    learner = make_learner(data, context=context, seconds=seconds, **options)
    return measure(learner, data, context, seconds, limit, options["typical"])


def make_learner(
    data: Data, depth: int, context: int, kind: str, seconds: float, typical: float, **options: Any
) -> Learner:
    """One of them, untrained; its first step is expected to take `typical` seconds."""
    config = ModelConfig.from_depth(depth, vocab_size=data.vocab_size, context=context)
    if kind == "chatmill":
        return Chatmill(data, config, seconds, typical, **options)
    return {"plain": Plain, "transformers": Transformers}[kind](data, config, **options)


def serve(folder: str, **options: Any) -> None:
    """Train for the seconds in each line of stdin, and print tokens a second; compiling comes before."""
    learner = make_learner(Data(Path(folder)), **options)
    for done in range(3):
        learner.step(done, STEPS)
    print(flush=True)
    for line in sys.stdin:
        start, useful = perf_counter(), 0
        while (took := perf_counter() - start) < float(line):
            useful += learner.step(3, STEPS).useful
        print(useful / took, flush=True)


def take_turns(common: dict[str, Any], runs: dict[str, dict[str, Any]], seconds: float, threads: int) -> None:
    """Print how many times as fast the first is, in turns, so that other load slows all of them."""
    with ExitStack() as stack:
        processes = []
        for options in runs.values():
            command = [sys.executable, __file__, "--serve", json.dumps(common | options)]
            environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            processes.append(stack.enter_context(subprocess.Popen(command, env=environment, **pipes)))
            processes[-1].stdout.readline()
        speeds = [[ask(process, seconds) for process in processes] for _ in range(TURNS)]
    first, *names = runs
    for i, name in enumerate(names, start=1):
        low, middle, high = quantiles([turn[0] / turn[i] for turn in speeds], n=4)
        print(f"{first}: {middle:.2f} times as fast as {name}, in half of {TURNS} turns {low:.2f} to {high:.2f}")


def ask(process: subprocess.Popen, seconds: float) -> float:
    """Tokens a second of one turn."""
    process.stdin.write(f"{seconds}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def show(name: str, result: dict[str, Any]) -> None:
    """Print a row of the table."""
    middle = "{:,.0f}-{:,.0f}".format(*result["middle_of_steps"])
    speeds = f"{result['tokens_per_second']:>10,.0f}{middle:>16}{result['all_tokens_per_second']:>14,.0f}"
    bits = f"{result['all']:8.3f}{result['assistant']:11.3f}{result['peak_mb']:7.0f}"
    print(f"{name:28}{result['parameters'] / 1e6:8.2f}M{speeds}{bits}", flush=True)


def peak_flops(kind: torch.dtype) -> float:
    """Operations a second of the product of two large matrices."""
    matrix, times = torch.ones(1024, 1024, dtype=kind), []
    for _ in range(5):
        start = perf_counter()
        torch.mm(matrix, matrix)
        times.append(perf_counter() - start)
    return 2 * 1024**3 / min(times)


def describe_machine(threads: int) -> str:
    """The date, the processor, and how fast it multiplies matrices: numbers of other machines compare by it."""
    torch.set_num_threads(threads)
    speeds = (f"{peak_flops(getattr(torch, name)) / 1e9:,.0f} in {name}" for name in PRECISIONS)
    return f"{date.today()}, {own_processor().vendor}, {threads} threads, GFLOP/s of one product: {', '.join(speeds)}"


def show_counted(folder: str) -> None:
    """Print the rows of what is counted or compressed, not trained."""
    data, started = Data(Path(folder)), perf_counter()
    held_out = data.validation
    texts_of_both = (data.train.ids, data.train.offsets), (held_out.ids, held_out.offsets)
    bits = [data.bits_of(nats) for nats in nats_by_order(*texts_of_both, data.vocab_size)]
    order = min(range(len(bits)), key=lambda i: bits[i][0])
    print(f"{f'counted n-grams, order {order + 1}':63}{'':14}{bits[order][0]:8.3f}{bits[order][1]:11.3f}", end="")
    print(f"   {perf_counter() - started:.0f} s on one core")
    known, both = (len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) for text in texts(data))
    size = int(data.num_bytes[held_out.ids].sum())
    print(f"{'xz':63}{'':14}{8 * (both - known) / size:8.3f}", flush=True)


def texts(data: Data) -> tuple[bytes, bytes]:
    """The training text, and the same followed by the held-out text."""
    train, held_out = (
        b"".join(data.vocabulary.tokens[i] for i in split.ids[data.num_bytes[split.ids] > 0])
        for split in (data.train, data.validation)
    )
    return train, train + held_out


def try_out(start: Callable[[dict[str, Any]], dict[str, Any]], seconds: float, only: list[str]) -> dict[str, Any]:
    """Print trials of chatmill and of the others; return the options of the best of each."""
    print(f"trials, {TRIAL * seconds:.0f} seconds each\n{ROW}")
    tried = {"chatmill": {"not compiled": {"compile": False, "prompt_weight": 1.0}}} | OTHERS
    best: dict[str, Any] = {}
    for kind, choices in tried.items():
        least = math.inf
        for name, choice in choices.items() if kind in ("chatmill", *only) else ():
            result = start({"kind": kind, "typical": GUESS, "seconds": TRIAL * seconds} | choice)
            show(f"{kind}, {name}", result)
            if result["all"] < least:
                least, typical = result["all"], result["seconds"] / result["steps"] * BATCH / choice.get("batch", BATCH)
                best[kind] = {"kind": kind, "typical": typical, "seconds": seconds} | choice
    for options in best.values():
        options |= {"compile": "auto"} if "compile" in options else {}
    return best


def compare(
    common: dict[str, Any],
    seconds: float,
    steps: int | None,
    threads: int,
    seeds: int,
    teacher: Path | None,
    only: list[str],
) -> None:
    """Print the trials and then the table, with chatmill and others, after the time or after `steps` steps."""
    print(describe_machine(threads))
    compiled = Path(common["folder"], "compiled")

    def start(options: dict[str, Any]) -> dict[str, Any]:
        return run(__file__, common | options, threads, compiled)

    best = try_out(start, seconds, only)
    print(f"\n{f'{steps} steps' if steps else f'{seconds:.0f} seconds'} each\n{ROW}")
    chatmill = best.pop("chatmill")
    runs = {name: chatmill | changes for name, changes in OURS.items() if name in only}
    if teacher:
        runs[f"chatmill, teacher {teacher.name}"] = chatmill | {"teacher": {"teacher": str(teacher)}}
    runs |= best
    bits: dict[str, list[float]] = {name: [] for name in runs}
    for seed in range(1, seeds + 1):
        for name, options in runs.items():
            result = start(options | {"seed": seed, "limit": steps})
            show(f"{name}, seed {seed}" if seeds > 1 else name, result)
            bits[name].append(result["all"])
    if seeds > 1:
        for name, found in bits.items():
            print(f"{name}: {mean(found):.3f} ± {(max(found) - min(found)) / 2:.3f} of all text", flush=True)
    show_counted(common["folder"])
    if best:
        take_turns(common, {"chatmill": chatmill} | best, seconds * TURN, threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sources", nargs="+", type=source, metavar="FORMAT=FILE")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=5)
    length.add_argument("--steps", type=int, help="train for as many steps in place of the minutes")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--tokenizer", choices=type_names(), default="bpe")
    parser.add_argument("--teacher", type=Path, metavar="MODEL", help="a row with this model as the teacher")
    parser.add_argument("--only", nargs="*", choices=ROWS, default=ROWS, metavar="NAME", help=", ".join(ROWS))
    parser.add_argument("--quick", action="store_true", help="run for seconds, to check that everything works")
    options = parser.parse_args()
    depth, context, vocab_size, minutes = (
        (1, 64, 512, 0.02) if options.quick else (options.depth, 512, 4096, options.minutes)
    )
    with prepared(dict(options.sources), vocab_size, 0.05, options.tokenizer) as folder:
        common = {"folder": folder, "depth": depth, "context": context}
        length = 60 * minutes, options.steps
        compare(common, *length, options.threads, options.seeds, options.teacher, options.only)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        print(json.dumps(train(**json.loads(sys.argv[2]))))
    elif sys.argv[1:2] == ["--serve"]:
        serve(**json.loads(sys.argv[2]))
    else:
        main()
