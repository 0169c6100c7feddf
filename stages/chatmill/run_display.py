"""What a training run logs: how long it is, how much memory it needs, and its progress."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import torch

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.model.chat_model import MAX_WHOLE_VOCAB, ChatModel
from chatmill.pipeline.progress import duration, log, progress
from chatmill.training.distributed import DeviceKind, Group
from chatmill.training.hardware import choose_precision
from chatmill.training.plan import STAGE, Plan
from chatmill.training.train_parameters import Precision, TrainParameters
from chatmill.training.trainer import LossTotals, Trainer

FEWEST_EPOCHS, MOST_EPOCHS = 0.5, 20  # a run outside of these is warned of


def describe_run(plan: Plan, model: ChatModel, memory: int, device: DeviceKind) -> Iterator[str]:
    """Lines about the size of a run, which needs so many bytes of memory in each process."""
    num_parameters = sum(weight.numel() for weight in model.parameters())
    place = "of the GPU" if device == "cuda" else "besides PyTorch itself"
    yield (
        f"{num_parameters:,} parameters, {plan.tokens:,} tokens in {plan.steps:,} steps: "
        f"{plan.epochs:,.2f} epochs of {plan.tokens_per_epoch:,} tokens; "
        f"about {memory / 1e9:.1f} GB of memory {place}"
    )
    steps_per_epoch = plan.steps / plan.epochs
    if plan.epochs < FEWEST_EPOCHS:
        remedy = f"train_model.steps = {math.ceil(FEWEST_EPOCHS * steps_per_epoch):,} are {FEWEST_EPOCHS} epochs"
        yield f"warning: {plan.epochs:.2g} epochs leave most of the training set unread: {remedy}"
    if plan.epochs > MOST_EPOCHS:
        remedy = f"train_model.steps = {max(1, math.floor(MOST_EPOCHS * steps_per_epoch)):,} are {MOST_EPOCHS} epochs"
        effect = "may teach a model its training set by heart, unless train_model.keep is best"
        yield f"warning: {plan.epochs:,.1f} epochs {effect}: {remedy}"


# How it goes on.

_WORTH_A_LINE = 10  # seconds of training
Show = Callable[[int, LossTotals], None]


@contextmanager
def show_progress(trainer: Trainer) -> Iterator[Show]:
    """In the main process, a progress bar, which a function of a step's tokens and of the losses so far moves on."""
    if not trainer.group.is_main_process:
        yield lambda tokens, losses: None
        return
    start, read = time.monotonic(), 0
    first: tuple[int, float] | None = None  # tokens and time of the first step, which may compile
    no_items: tuple[int, ...] = ()
    with closing(progress(no_items, STAGE, total=trainer.steps, unit=" steps", done=trainer.completed_steps)) as bar:

        def show(tokens: int, losses: LossTotals) -> None:
            nonlocal read, first
            read, now = read + tokens, time.monotonic()
            before, since = first = first or (read, now)
            bits = "" if losses.bits_per_byte is None else f", {losses.bits_per_byte:.3f} bits/byte"
            speed = f", {(read - before) / (now - since):,.0f} tokens/s" if read > before else ""
            bar.set_postfix_str(f"loss {losses.loss:.3f}{bits}{speed}", refresh=False)
            bar.update()

        yield show
    if (seconds := time.monotonic() - start) > _WORTH_A_LINE:
        log(STAGE, f"trained for {duration(seconds)}, {read / seconds:,.0f} tokens/s")


# An estimate of the memory of a training run, made before its first step.

_LIBRARIES = 90e6  # bytes that the first step loads, whatever the model
_ACTIVATIONS_PER_TOKEN = 21  # vectors of C channels that a layer stores per token for the backward pass
_FEED_FORWARD_ACTIVATIONS = 4  # vectors of I channels, likewise
_LOGITS = 12  # bytes for each logit: itself, its logarithm, its gradient
_MUON: dict[Precision, int] = {"float32": 40, "bfloat16": 28}  # bytes for each weight of a layer during Muon's step
_OUT_OF_MEMORY = ("can't allocate memory", "bad_alloc", "out of memory")  # words in torch's errors


def num_weights(config: ModelConfig) -> tuple[int, int]:
    """The number of weights in the layers' matrices, and of all others."""
    width, size = config.hidden_size, config.head_dim
    heads = 2 * config.num_attention_heads + 2 * config.num_key_value_heads
    layer = width * (size * heads + 3 * config.intermediate_size)
    embeddings = config.vocab_size * width * (1 if config.tie_word_embeddings else 2)
    gains = 2 * width + (2 * size if config.variant.qk_norm else 0)
    return config.num_hidden_layers * layer, embeddings + config.num_hidden_layers * gains + width


def needed_memory(
    config: ModelConfig, parameters: TrainParameters, plan: Plan, device: DeviceKind, group: Group
) -> int:
    """The peak bytes that a process needs for a model of some shape, beyond one with torch.

    Weights, gradients and the optimiser's state are spread over processes; copies of the weights are not. A model that
    is not new has no Muon; one with adapters takes most while it is loaded.
    """
    last, is_new = plan.phases[-1], parameters.initial is None
    each, other = (12, 16) if is_new else (12, 12) if parameters.lora_rank is not None else (16, 16)
    matrices, others = num_weights(config)
    shards = group.size if parameters.shard else 1
    state = (each * matrices + other * others) / shards  # float32: weights, gradients, and one momentum or two
    if shards > 1 and device == "cpu":  # the main process gathers all but the gradients for a checkpoint
        state += (each - 4) * matrices + (other - 4) * others
    if parameters.keep == "best" and device == "cpu":
        state += 4 * (matrices + others)
    size, width, layers = config.head_dim, config.hidden_size, config.num_hidden_layers
    layer = max(2 * width * config.intermediate_size, 2 * width * size * config.num_attention_heads)
    muon = _MUON[choose_precision(parameters.precision, device)] * layers * layer * is_new
    vectors = _ACTIVATIONS_PER_TOKEN * width + _FEED_FORWARD_ACTIVATIONS * config.intermediate_size
    logits, row_length = _LOGITS * min(config.vocab_size, MAX_WHOLE_VOCAB), last.dataset.row_length
    batch = last.rows_per_batch * row_length * (4 * layers * vectors + logits + 5 * row_length)
    return int(_LIBRARIES + state + max(muon, batch))


def check_memory(needed: Callable[[int], int], depth: int, available: int) -> None:
    """Raise ValueError if the bytes needed for a depth exceed those available."""
    if needed(depth) <= available:
        return
    largest = next((lower for lower in range(depth, 0, -1) if needed(lower) <= available), None)
    fits = f"depth {largest} is the largest that fits" if largest else "no depth fits"
    raise ValueError(
        f"train_model.depth = {depth} needs about {needed(depth) / 1e9:,.1f} GB of memory, and {available / 1e9:,.1f} "
        f"GB are free: {fits}; or lower context or batch_size"
    )


def available_memory(group: Group) -> int:
    """Free bytes for each process: of its GPU, or of the machine within the limits of its control groups."""
    if group.device.type == "cuda":
        return torch.cuda.mem_get_info(group.device)[0]
    file = Path("/proc/meminfo")
    if file.exists():
        lines = dict(line.split(":") for line in file.read_text().splitlines())
        free = 1024 * int(lines["MemAvailable"].split()[0])
    else:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(free, *_cgroup_memory())) // group.processes_per_device


def _cgroup_memory() -> Iterator[float]:
    """Bytes left under each memory limit of this process's control groups (version 2); cached files count as free."""
    yield math.inf
    file = Path("/proc/self/cgroup")
    paths = [line[3:] for line in file.read_text().splitlines() if line.startswith("0::")] if file.exists() else []
    for group in (Path(f"/sys/fs/cgroup{path}") for path in paths):
        for folder in (group, *group.parents):
            limit = folder / "memory.max"
            if limit.exists() and (most := limit.read_text().strip()) != "max":
                counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                yield int(most) - int((folder / "memory.current").read_text()) + int(counts["inactive_file"])


@contextmanager
def report_out_of_memory() -> Iterator[None]:
    """Raise ValueError where Python or torch runs out of memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in _OUT_OF_MEMORY):
            raise
        raise ValueError("out of memory: lower train_model.depth, context or batch_size") from error
