"""Estimates of the operations and memory of a training run, made before its first step.

Shapes: B rows computed together, T tokens of a row, C channels, I channels within feed-forward, V vocabulary.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.training.distributed import DeviceKind, Group
from chatmill.training.hardware import NUMBER_FORMATS, choose_precision
from chatmill.training.plan import Plan
from chatmill.training.train_parameters import Precision, TrainParameters

_GPU_PEAK_TFLOPS = {  # 1e12 operations a second, by the makers' data for dense products: in bfloat16, in float32
    "GB200": (2500, 80),
    "B200": (2250, 75),
    "GH200": (989, 67),
    "H200": (989, 67),
    "H100 PCIe": (756, 51),
    "H100": (989, 67),
    "A100": (312, 19.5),
    "L40S": (362, 91.6),
    "L4": (121, 30.3),
    "A10": (125, 31.2),
    "RTX 4090": (165, 82.6),
    "RTX 3090": (71, 35.6),
    "MI300X": (1307, 163),
}
_TRIALS, _SIDE = 5, 1024  # matrix products by which a CPU is measured, and the size of the matrices

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


def flops_per_token(config: ModelConfig, context: int) -> int:
    """Operations per trained token: 6 for each weight in a product, and 12 C T for the attention of each layer.

    This is the convention of MFU (arXiv:2204.02311, appendix B): all T positions count, though half are masked.
    """
    matrices, _ = num_weights(config)
    attended = config.num_hidden_layers * config.num_attention_heads * config.head_dim * context
    return 6 * (matrices + config.vocab_size * config.hidden_size) + 12 * attended


def peak_flops(device: torch.device, precision: Precision) -> float | None:
    """Peak operations a second: of a CPU, as measured by matrix products; None for an unknown GPU."""
    if device.type == "cpu":
        return _measure_peak_flops(NUMBER_FORMATS[precision].dtype)
    name = torch.cuda.get_device_name(device)
    peaks = next((peaks for known, peaks in _GPU_PEAK_TFLOPS.items() if known in name), None)
    return peaks and 1e12 * peaks[precision == "float32"]


def _measure_peak_flops(kind: torch.dtype) -> float:
    matrix, times = torch.ones(_SIDE, _SIDE, dtype=kind), []
    for _ in range(_TRIALS):
        start = time.perf_counter()
        torch.mm(matrix, matrix)
        times.append(time.perf_counter() - start)
    return 2 * _SIDE**3 / min(times[1:])


def memory_needed(
    config: ModelConfig, rows: int, row_length: int, precision: Precision, shards: int = 1, copies: int = 0
) -> int:
    """Peak bytes of a step that computes `rows` rows together, beyond a process that has loaded torch.

    Weights, gradients and the optimiser's state are spread over `shards` processes; `copies` of the weights are not.
    """
    matrices, others = num_weights(config)
    state = (12 * matrices + 16 * others) / shards  # float32: weights, gradients, and one momentum or two
    state += 4 * copies * (matrices + others)
    size, width = config.head_dim, config.hidden_size
    layer = max(2 * width * config.intermediate_size, 2 * width * size * config.num_attention_heads)
    muon = NUMBER_FORMATS[precision].muon_bytes * config.num_hidden_layers * layer
    activations = (
        4
        * config.num_hidden_layers
        * (_ACTIVATIONS_PER_TOKEN * width + _FEED_FORWARD_ACTIVATIONS * config.intermediate_size)
    )
    batch = rows * row_length * (activations + _LOGITS * config.vocab_size + 5 * row_length)
    return int(_LIBRARIES + state + max(muon, batch))


def memory_limits(
    parameters: TrainParameters, plan: Plan, device: DeviceKind, group: Group
) -> tuple[Callable[[ModelConfig], int], int]:
    """The bytes that a process needs for a model of some shape, and those that it may take."""
    last = plan.phases[-1]
    needed = partial(
        memory_needed,
        rows=last.rows_per_batch,
        row_length=last.dataset.row_length,
        precision=choose_precision(parameters.precision, device),
        shards=group.size if parameters.shard else 1,
        copies=int(parameters.keep == "best" and device == "cpu"),
    )
    return needed, available_memory(group.device) // group.processes_per_device


def check_memory(needed: Callable[[int], int], depth: int, available: int) -> None:
    """Raise ValueError if the bytes needed for a depth exceed those available."""
    if needed(depth) <= available:
        return
    largest = next((lower for lower in range(depth, 0, -1) if needed(lower) <= available), None)
    fits = f"depth {largest} is the largest that fits" if largest else "no depth fits"
    raise ValueError(
        f"train_model.depth = {depth} needs about {_gigabytes(needed(depth))} of memory, and {_gigabytes(available)} "
        f"are free: {fits}; or lower context or batch_size"
    )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"


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
