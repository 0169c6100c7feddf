"""What a training run logs: how long it is, its progress, and where its loss diverges."""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.model.chat_model import MAX_WHOLE_VOCAB, ChatModel
from chatmill.pipeline.progress import duration, log, progress
from chatmill.tokenizer.vocabulary.vocabulary import TEXT_KINDS, Vocabulary
from chatmill.training.chains import Row
from chatmill.training.distributed import DeviceKind, Group
from chatmill.training.hardware import NUMBER_FORMATS, choose_precision
from chatmill.training.packing import PackedDataset
from chatmill.training.plan import STAGE, Plan
from chatmill.training.train_parameters import TrainParameters
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
    steps_per_epoch = plan.steps * plan.tokens_per_epoch / plan.tokens
    if plan.epochs < FEWEST_EPOCHS:
        yield (
            f"warning: {plan.epochs:.2g} epochs leave most of the training set unread: "
            f"train_model.steps = {math.ceil(FEWEST_EPOCHS * steps_per_epoch):,} are {FEWEST_EPOCHS} epochs"
        )
    if plan.epochs > MOST_EPOCHS:
        yield (
            f"warning: after {plan.epochs:,.1f} epochs a model may know its training set by heart: "
            f"train_model.steps = {max(1, math.floor(MOST_EPOCHS * steps_per_epoch)):,} are {MOST_EPOCHS} epochs; "
            "train_model.keep = best keeps the best weights"
        )


# Detects a loss that diverges, and describes the conversations on which it did.

_HISTORY = 64  # steps that a loss is compared with
_MIN_HISTORY = 16  # steps; before, a loss is compared with the first
_MAX_DEVIATIONS = 8.0  # median deviations over the median; ordinary steps, of 1,000 tokens too, stayed below 5.4
_MIN_RISE = 1.0  # nats over the median, at least
_PATIENCE = 10  # steps that a spike may last: most are gone after one hard batch
_NAMED, _QUOTED, _WORDS = 20, 3, 48  # conversations, those quoted, and the characters quoted of each


class LossWatch:
    """Stops a run whose loss is not finite, or rose suddenly and stays high."""

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=_HISTORY)
        self.spike: list[tuple[int, float, str]] = []  # steps, losses and conversations since it began

    def check(self, step: int, loss: float, conversations: Callable[[], str]) -> None:
        """Record a step's loss; raises ValueError if training diverges. `conversations()` tells which were read."""
        if not math.isfinite(loss):
            raise ValueError(_advice(f"step {step}: the loss is {loss}", conversations()))
        if loss <= self.limit():
            self.losses.append(loss)
            self.spike = []
            return
        self.spike.append((step, loss, "" if self.spike else conversations()))
        if len(self.spike) > _PATIENCE:
            first, height, description = self.spike[0]
            change = f"rose from {median(self.losses):.2f} to {height:.2f} and is {loss:.2f} {_PATIENCE} steps later"
            raise ValueError(_advice(f"step {first}: the loss {change}", description))

    def limit(self) -> float:
        if len(self.losses) < _MIN_HISTORY:
            return self.losses[0] + _MIN_RISE if self.losses else math.inf
        middle = median(self.losses)
        spread = median(abs(loss - middle) for loss in self.losses)
        return middle + max(_MIN_RISE, _MAX_DEVIATIONS * spread)

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self.losses), "spike": self.spike}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses.extend(state["losses"])
        self.spike = state["spike"]


def _advice(problem: str, conversations: str) -> str:
    return f"{problem}: lower train_model.learning_rate, or look at the conversations of the step: {conversations}"


def describe_conversations(dataset: PackedDataset, rows: Sequence[Row], vocabulary: Vocabulary) -> str:
    """The line numbers of the rows' conversations, longest first; of the first few, also their first words."""
    members = np.concatenate([row.conversations for row in rows])
    members = members[np.argsort(-dataset.spans.lengths[members], kind="stable")]
    numbers = np.searchsorted(dataset.split.offsets, dataset.spans.starts[members], side="right") - 1
    names = [f"{i + 1} {_first_words(dataset, i, vocabulary)!r}" for i in numbers[:_QUOTED]]
    names += [f"{i + 1}" for i in numbers[_QUOTED:_NAMED]]
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return f"lines {', '.join(names)}{more} of train.jsonl"


def _first_words(dataset: PackedDataset, number: int, vocabulary: Vocabulary) -> str:
    begin, end = dataset.split.offsets[number : number + 2]
    ids = dataset.split.ids[begin : min(end, begin + _WORDS)]
    text = b"".join(vocabulary.tokens[i] for i in ids if vocabulary.kinds[i] in TEXT_KINDS)
    return " ".join(text.decode(errors="replace").split())[:_WORDS]


# How it goes on.

_WORTH_A_LINE = 10  # seconds of training
_MOST_COPIED = 1e9  # bytes of a model whose answers are shown while it is trained
SHOWN_AT = (0.1, 0.5)  # of the steps: what the model answers so far
Samples = Callable[[ChatModel], Iterable[tuple[str, str]]]  # questions, and a model's answers to them


def show_answers(model: ChatModel, samples: Samples, when: str) -> None:
    for question, answer in samples(model):
        log(STAGE, f"{when}, {question!r} is answered {answer!r}")


class Display:
    """The progress of the main process: loss, bits per byte, tokens per second, and at times answers."""

    def __init__(self, trainer: Trainer, samples: Samples) -> None:
        self._trainer, self._tokens, self._start = trainer, 0, time.monotonic()
        self._first: tuple[int, float] | None = None  # tokens and time of the first step, which may compile
        self._samples, self._steps_to_show = samples, {max(1, int(share * trainer.steps)) for share in SHOWN_AT}
        self._bar: Any = None
        if trainer.group.is_main_process:
            self._bar = progress((), STAGE, total=trainer.steps, unit=" steps", done=trainer.completed_steps)

    def __enter__(self) -> "Display":
        return self

    def __exit__(self, *error: object) -> None:
        seconds = time.monotonic() - self._start
        if self._bar is not None:
            self._bar.close()
            if self._trainer.completed_steps == self._trainer.steps and seconds > _WORTH_A_LINE:
                log(STAGE, f"trained for {duration(seconds)}, {self._tokens / seconds:,.0f} tokens/s")

    def update(self, tokens: int, losses: LossTotals) -> None:
        """Show that a step of so many tokens is complete, and the losses since the last point of the curve."""
        if self._bar is not None:
            self._tokens += tokens
            bits = "" if losses.bits_per_byte is None else f", {losses.bits_per_byte:.3f} bits/byte"
            before, since = self._first = self._first or (self._tokens, time.monotonic())
            seconds = time.monotonic() - since
            speed = f", {(self._tokens - before) / seconds:,.0f} tokens/s" if self._tokens > before else ""
            self._bar.set_postfix_str(f"loss {losses.loss:.3f}{bits}{speed}", refresh=False)
            self._bar.update()
            if self._trainer.completed_steps in self._steps_to_show and can_be_copied(self._trainer.model):
                model = deepcopy(self._trainer.model).cpu()  # no state of training is touched, as by a cache in a layer
                show_answers(model, self._samples, f"step {self._trainer.completed_steps:,}")


def can_be_copied(model: ChatModel) -> bool:
    """Whether this process has all weights of the model, and room for a second one."""
    weights = [*model.parameters()]
    sharded = any(isinstance(weight, DTensor) for weight in weights)
    return not sharded and sum(weight.nbytes for weight in weights) <= _MOST_COPIED


# An estimate of the memory of a training run, made before its first step.

_LIBRARIES = 90e6  # bytes that the first step loads, whatever the model
_ACTIVATIONS_PER_TOKEN = 21  # vectors of C channels that a layer stores per token for the backward pass
_FEED_FORWARD_ACTIVATIONS = 4  # vectors of I channels, likewise
_LOGITS = 12  # bytes for each logit: itself, its logarithm, its gradient
_OUT_OF_MEMORY = ("can't allocate memory", "bad_alloc", "out of memory")  # words in torch's errors


def num_weights(config: ModelConfig) -> tuple[int, int]:
    """The number of weights in the layers' matrices, and of all others."""
    width, size = config.hidden_size, config.head_dim
    heads = 2 * config.num_attention_heads + 2 * config.num_key_value_heads
    layer = width * (size * heads + 3 * config.intermediate_size)
    embeddings = config.vocab_size * width * (1 if config.tie_word_embeddings else 2)
    gains = 2 * width + (2 * size if config.variant.qk_norm else 0)
    return config.num_hidden_layers * layer, embeddings + config.num_hidden_layers * gains + width


def memory_limits(
    parameters: TrainParameters, plan: Plan, device: DeviceKind, group: Group
) -> tuple[Callable[[ModelConfig], int], int]:
    """The peak bytes that a process needs for a model of some shape, beyond one with torch; and those that are free.

    Weights, gradients and the optimiser's state are spread over processes; copies of the weights are not. A model that
    is not new has no Muon; one with adapters takes most while it is loaded.
    """
    last, is_new = plan.phases[-1], parameters.initial is None
    rows, row_length = last.rows_per_batch, last.dataset.row_length
    shards = group.size if parameters.shard else 1
    copies = int(parameters.keep == "best" and device == "cpu")
    muon_bytes = NUMBER_FORMATS[choose_precision(parameters.precision, device)].muon_bytes
    each, other = (12, 16) if is_new else (12, 12) if parameters.lora_rank is not None else (16, 16)

    def needed(config: ModelConfig) -> int:
        matrices, others = num_weights(config)
        state = (each * matrices + other * others) / shards  # float32: weights, gradients, and one momentum or two
        state += 4 * copies * (matrices + others)
        size, width, layers = config.head_dim, config.hidden_size, config.num_hidden_layers
        layer = max(2 * width * config.intermediate_size, 2 * width * size * config.num_attention_heads)
        vectors = _ACTIVATIONS_PER_TOKEN * width + _FEED_FORWARD_ACTIVATIONS * config.intermediate_size
        logits = _LOGITS * min(config.vocab_size, MAX_WHOLE_VOCAB)
        batch = rows * row_length * (4 * layers * vectors + logits + 5 * row_length)
        return int(_LIBRARIES + state + max(muon_bytes * layers * layer * is_new, batch))

    return needed, available_memory(group.device) // group.processes_per_device


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


def available_memory(device: torch.device) -> int:
    """Free bytes: of a GPU, or of the machine within the limits of this process's cgroups."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min(_machine_memory(), *cgroup_memory(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")))


def _machine_memory() -> int:
    """Bytes that are available to programs; where the system does not report that, all of its memory."""
    file = Path("/proc/meminfo")
    if not file.exists():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    lines = dict(line.split(":") for line in file.read_text().splitlines())
    return 1024 * int(lines["MemAvailable"].split()[0])


def cgroup_memory(process: Path, root: Path) -> Iterator[int]:
    """Bytes left under each cgroup memory limit of a process, versions 1 and 2; cached files count as free."""
    for line in process.read_text().splitlines() if process.exists() else ():
        _, controller, path = line.split(":", 2)
        if controller in ("", "memory"):
            group = Path(path.lstrip("/"))
            for folder in (root / controller / part for part in (group, *group.parents)):
                yield from _room(folder)


def _room(folder: Path) -> Iterator[int]:
    for limit, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        if (folder / limit).exists() and (most := (folder / limit).read_text().strip()) != "max":
            counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            cached = int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))
            yield int(most) - int((folder / usage).read_text()) + cached


@contextmanager
def report_out_of_memory() -> Iterator[None]:
    """Raise ValueError where Python or torch runs out of memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in _OUT_OF_MEMORY):
            raise
        raise ValueError("out of memory: lower train_model.depth, context or batch_size") from error
