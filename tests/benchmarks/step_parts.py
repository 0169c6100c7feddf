"""Where the time of a training step goes, and what each part reaches of the speed of one product of matrices.

    python tests/benchmarks/step_parts.py [--depth D] [--vocab-size V] [--row-length T] [--precision P] [--no-compile]
                                          [--threads N] [--steps N]

A model of the depth is trained on random tokens, 4,096 a step, in conversations of 128. PyTorch's profiler tells how
long each of its operations takes; those that multiply matrices also how many operations of arithmetic they are. `head`
are the products with the vocabulary, `layers` those with the other weights, `attention` those of queries, keys and
values, each forwards and backwards; `Muon` and `AdamW` are the whole of these optimizers, `Newton-Schulz` the products
within Muon. `other` is what remains: norms, activations, softmax, losses, and what Python does. The last column is the
share of the speed that one product of 1,024 by 1,024 matrices reaches on this machine, in the same precision.
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from learning import BATCH
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.conversation import LossKind
from chatmill.model.chat_model import ChatModel, initialise
from chatmill.processor import own_processor
from chatmill.run_estimate import peak_flops
from chatmill.training.hardware import NUMBER_FORMATS, choose_precision, set_up_compiler
from chatmill.training.optimizer import MuonAdamW
from chatmill.training.packing import Batch
from chatmill.training.trainer import Trainer, keep_freed_memory

CONVERSATION = 128  # tokens
WARM_UP = 3  # steps
PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}


class Part(NamedTuple):
    """What a part of a step takes."""

    seconds: float = 0.0
    operations: float = 0.0  # of its products

    def plus(self, seconds: float, operations: float) -> "Part":
        """This part with more."""
        return Part(self.seconds + seconds, self.operations + operations)


def random_batch(vocab_size: int, row_length: int, seed: int) -> Batch:
    """BATCH random tokens, all of them trained on."""
    shape = BATCH // row_length, row_length
    ids = np.random.default_rng(seed).integers(vocab_size, size=(shape[0], row_length + 1))
    places = np.broadcast_to(np.arange(row_length), shape)
    loss = np.full(shape, int(LossKind.TRAINED))
    return Batch(ids[:, :-1], places % CONVERSATION, places // CONVERSATION, ids[:, 1:], loss)


def part_of(event: FunctionEvent, head_operations: int) -> str:
    """The part of a step that an operation belongs to; the head's products are those of so many operations."""
    regions, ancestor = set(), event
    while ancestor is not None:
        regions.add(ancestor.name)
        ancestor = ancestor.cpu_parent
    is_product = event.name in PRODUCTS
    if "Muon" in regions:
        return "Newton-Schulz" if is_product else "Muon"
    if "AdamW" in regions:
        return "AdamW"
    if not is_product:
        return "other"
    if event.name in ("aten::bmm", "aten::baddbmm"):
        return "attention"
    return "head" if event.flops == head_operations else "layers"


def profile_steps(trainer: Trainer, batches: list[Batch]) -> tuple[float, dict[str, Part]]:
    """The seconds of a step without the profiler, and what its parts take with it."""
    config = trainer.model.config
    head_operations = 2 * BATCH * config.vocab_size * config.hidden_size
    for name, optimizer in zip(("Muon", "AdamW"), trainer.optimizer.optimizers, strict=True):
        optimizer.step = record_function(name)(optimizer.step)
    started = perf_counter()
    for batch in batches:
        trainer.step([batch])
    unobserved = (perf_counter() - started) / len(batches)
    parts: dict[str, Part] = defaultdict(Part)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_flops=True) as observed:
        for batch in batches:
            with record_function("step"):
                trainer.step([batch])
    for event in observed.events():
        seconds = event.self_cpu_time_total / 1e6 / len(batches)
        name = part_of(event, head_operations)
        parts[name] = parts[name].plus(seconds, (event.flops or 0) / len(batches))
    return unobserved, parts


def show(unobserved: float, parts: dict[str, Part], peak: float) -> None:
    """Print a row for each part, and one for the step."""
    total = Part(*map(sum, zip(*parts.values(), strict=True)))
    print(f"{'':16}{'ms':>8}{'share':>8}{'GFLOP':>8}{'GFLOP/s':>9}{'of one product':>16}")
    rows = sorted(parts.items(), key=lambda item: -item[1].seconds)
    for name, part in [*rows, ("step", total)]:
        row = f"{name:16}{1e3 * part.seconds:8.1f}{part.seconds / total.seconds:8.1%}"
        if part.operations:
            speed = part.operations / part.seconds
            row += f"{part.operations / 1e9:8.1f}{speed / 1e9:9.0f}{speed / peak:16.0%}"
        print(row)
    print(f"{1e3 * unobserved:.1f} ms a step without the profiler, {BATCH / unobserved:,.0f} tokens/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--row-length", type=int, default=512)
    parser.add_argument("--precision", choices=["auto", *NUMBER_FORMATS], default="auto")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    set_up_compiler()
    precision = choose_precision(options.precision)
    config = ModelConfig.from_depth(options.depth, vocab_size=options.vocab_size, context=options.row_length)
    model = ChatModel(config)
    initialise(model, 1)
    trainer = Trainer(
        model,
        MuonAdamW(model, 0.012, NUMBER_FORMATS[precision].dtype),
        torch.ones(options.vocab_size),
        steps=1000,
        prompt_weight=1.0,
        precision=precision,
        compiled=options.compile,
    )
    batches = [random_batch(options.vocab_size, options.row_length, seed) for seed in range(options.steps)]
    for batch in batches[:WARM_UP]:
        trainer.step([batch])
    peak = peak_flops(torch.device("cpu"), precision)
    number = sum(weight.numel() for weight in model.parameters())
    how = f"{precision}, {'' if options.compile else 'not '}compiled, {number / 1e6:.1f} M parameters"
    print(f"{own_processor().vendor}, {options.threads} threads, {how}; one product: {peak / 1e9:,.0f} GFLOP/s")
    show(*profile_steps(trainer, batches), peak)


if __name__ == "__main__":
    main()
