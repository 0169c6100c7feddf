"""Distributed training: each process computes its part of every step, and sums are reduced over all of them.

torchrun starts the processes, on one machine or many, and sets the rank of each in its environment (RANK, WORLD_SIZE,
LOCAL_RANK).
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils._pytree import tree_map_only

from chatmill.model.chat_model import ChatModel
from chatmill.model.layers import Layer
from chatmill.pipeline.processes import scripts_on_path
from chatmill.training.checkpoint import PARTS, SIGTERM_EXIT_CODE, changed_parts

DeviceKind = Literal["cpu", "cuda"]
_LOST = ("gloo", "Connection", "Socket", "NCCL")  # words in the errors of a broken connection


@dataclass(frozen=True, slots=True)
class Group:
    """The process group as one of its processes sees it. With a single process, every reduction is the identity."""

    device: torch.device
    rank: int = 0
    size: int = 1
    processes_per_device: int = 1  # processes that share the device's memory, this one included

    @property
    def is_main_process(self) -> bool:
        """Whether this process writes the outputs and shows the progress for all."""
        return self.rank == 0

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def total(self, number: float) -> float:
        """The sum of a number over all processes."""
        if self.size == 1:
            return number
        return self.all_reduce(torch.tensor(number, dtype=torch.float64, device=self.device)).item()

    def all_reduce_gradients(self, weights: Iterable[nn.Parameter]) -> None:
        """Sum the gradients over all processes in one operation; FSDP has already summed those of sharded weights."""
        plain = [weight.grad for weight in weights if not isinstance(weight, DTensor)]
        gradients = [gradient for gradient in plain if gradient is not None]
        if self.size == 1 or not gradients:
            return
        flat = self.all_reduce(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def broadcast(self, value: Any) -> Any:
        """The main process's value, in all others without the content of its tensors, which `receive` sends."""
        if self.size == 1:
            return value
        outline = [tree_map_only(Tensor, lambda x: x.to("meta"), value) if self.is_main_process else None]
        dist.broadcast_object_list(outline, device=self.device)
        return value if self.is_main_process else outline[0]

    def receive(self, tensor: Tensor) -> Tensor:
        """The main process's tensor, in all processes and on the CPU; in others `tensor` has its shape and dtype."""
        if self.size == 1:
            return tensor
        place = tensor.to(self.device) if self.is_main_process else torch.empty_like(tensor, device=self.device)
        dist.broadcast(place, 0)
        return place.cpu()

    def gather_full(self, value: Any) -> Any:
        """A value whose tensors may be sharded, with full ones on the CPU in the main process, and None in others."""

        def gather(tensor: Tensor) -> Tensor | None:
            full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            return full.cpu() if self.is_main_process else None

        return tree_map_only(Tensor, gather, value)


SINGLE_PROCESS = Group(torch.device("cpu"))


def choose_device_kind(requested: Literal["auto", "cpu", "cuda"]) -> DeviceKind:
    able = torch.cuda.is_available()
    if requested == "cuda" and not able:
        raise ValueError("train_model.device = cuda: PyTorch finds no GPU: set cpu, or auto")
    return "cuda" if able and requested != "cpu" else "cpu"


def is_launched() -> bool:
    """Whether torchrun started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def processes_to_launch(requested: int | Literal["auto"], device: DeviceKind) -> int:
    """The number of processes to start, for `auto` one for each GPU; 1 where this process itself is to train."""
    if is_launched():
        return 1
    if requested == "auto":
        return torch.cuda.device_count() if device == "cuda" else 1
    return requested


@contextmanager
def join_process_group(kind: DeviceKind) -> Iterator[Group]:
    """Join the process group that the environment names; without one, the group is this process alone.

    Raises ValueError if another process ends too early.
    """
    device = _own_device(kind)
    size = int(os.environ["WORLD_SIZE"]) if is_launched() else 1
    if size == 1:
        yield Group(device)
        return
    try:
        gpu = device if kind == "cuda" else None
        dist.init_process_group("nccl" if gpu else "gloo", device_id=gpu)
        per_device = int(os.environ.get("LOCAL_WORLD_SIZE", size)) if kind == "cpu" else 1
        yield Group(device, dist.get_rank(), size, per_device)
    except RuntimeError as error:
        if any(word in str(error) for word in _LOST):
            raise ValueError(f"process {os.environ['RANK']} of {size} lost contact to the others") from error
        raise
    dist.destroy_process_group()


def _own_device(kind: DeviceKind) -> torch.device:
    if kind == "cpu":
        return torch.device("cpu")
    number, count = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
    if number >= count:
        raise ValueError(f"process {number + 1} of this machine has no GPU, there are {count}: start {count} processes")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def shard(model: ChatModel, group: Group) -> None:
    """Shard every weight over the processes, by FSDP; the weights of a layer are gathered while it computes."""
    mesh = init_device_mesh(group.device.type, (group.size,))
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    for module in (*layers, model):
        sharded = fully_shard(module, mesh=mesh)
        sharded.set_force_sum_reduction_for_comms(True)  # gloo supports no other
        sharded.set_gradient_divide_factor(1.0)
    register_fsdp_forward_method(model, "nats")  # gathers the weights for it as for forward


def shard_like(full: Tensor, weight: Tensor) -> Tensor:
    if not isinstance(weight, DTensor) or not full.ndim:
        return full
    dims = [placement.dim for placement in weight.placements if isinstance(placement, Shard)]
    placements = [Shard(dim + full.ndim - weight.ndim) for dim in dims]
    return distribute_tensor(full.to(weight.device), weight.device_mesh, placements, src_data_rank=None)


@torch.no_grad()
def load_full_state_dict(model: ChatModel, weights: Mapping[str, Tensor], group: Group) -> None:
    """Load the main process's full weights, of `Group.broadcast`, into a model whose own may be sharded.

    Weights that are not among them stay.
    """
    for name, weight in model.state_dict().items():
        if name in weights:
            weight.copy_(shard_like(group.receive(weights[name]), weight))


def launch(processes: int, command: Sequence[str]) -> int:
    """Run a Python script in several processes on this machine, as torchrun does; returns the exit code.

    The first error ends all of them; SIGTERM is passed on, so that the run saves its state.
    """
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=str(os.getpid()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    try:
        with scripts_on_path():
            elastic_launch(config, sys.executable)(*command)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode == SIGTERM_EXIT_CODE:
            return SIGTERM_EXIT_CODE
        reason = "its error is above" if failure.exitcode > 0 else "if memory ran out, lower train_model.batch_size"
        print(f"process {rank} of {processes} exited with code {failure.exitcode}: {reason}", file=sys.stderr)
        return 1
    except SignalException:
        return SIGTERM_EXIT_CODE
    return 0


def check_equal(fingerprint: str, group: Group) -> None:
    """Raise ValueError in all processes if one of them has other parameters, data or code than the main process."""
    changed = changed_parts(fingerprint, group.broadcast(fingerprint))
    if different := [part for part in PARTS[:-1] if group.total(part in changed)]:
        raise ValueError(
            f"the processes have different {' and '.join(different)}: give each machine the same clone and data"
        )
