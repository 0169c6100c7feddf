"""Distributed training: each process computes its part of every step, and sums are reduced over all of them.

`launch` starts the processes on one machine, torchrun on one or many; both set the rank of each in its environment
(RANK, WORLD_SIZE, LOCAL_RANK).
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.utils import get_total_norm
from torch.utils._pytree import tree_map_only
from tqdm import tqdm

from chatmill.model.chat_model import ChatModel
from chatmill.model.layers import Layer
from chatmill.pipeline.processes import die_with_parent, scripts_on_path
from chatmill.training.checkpoint import SIGTERM_EXIT_CODE

DeviceKind = Literal["cpu", "cuda"]
_LOST = ("gloo", "Connection", "Socket", "NCCL")  # words in the errors of a broken connection


class LostContactError(ValueError):
    """Another process ended, so that its connection broke."""


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
        return (
            self.all_reduce(torch.tensor(number, dtype=torch.float64, device=self.device)).item()
            if self.size > 1
            else number
        )

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
        """The main process's value, in all processes; its tensors are sent one by one, and are on the CPU."""
        return tree_map_only(Tensor, self.receive, self.outline(value))

    def outline(self, value: Any) -> Any:
        """The main process's value, in all others with tensors that have its shapes and types alone."""
        if self.size == 1:
            return value
        outline = [tree_map_only(Tensor, lambda x: x.to("meta"), value) if self.is_main_process else None]
        dist.broadcast_object_list(outline, device=self.device)
        return value if self.is_main_process else outline[0]

    def receive(self, tensor: Tensor) -> Tensor:
        """The main process's tensor, in all processes and on the CPU; in others `tensor` is of its shape and type."""
        if self.size == 1:
            return tensor
        place = tensor.to(self.device) if self.is_main_process else torch.empty_like(tensor, device=self.device)
        dist.broadcast(place, 0)
        return place.cpu()

    def gather_full(self, value: Any) -> Any:
        """A value whose tensors may be sharded, with full ones on the CPU in the main process, and None in others."""
        return tree_map_only(Tensor, self._gather_tensor, value)

    def gather_each(self, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
        """Tensors that may be sharded, one after another whole and on the CPU in the main process; in others none."""
        for tensor in tensors:
            if (full := self._gather_tensor(tensor)) is not None:
                yield full

    def _gather_tensor(self, tensor: Tensor) -> Tensor | None:
        tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        return tensor.cpu() if self.is_main_process else None


SINGLE_PROCESS = Group(torch.device("cpu"))


def choose_device_kind(requested: Literal["auto", "cpu", "cuda"]) -> DeviceKind:
    """The requested kind; for `auto` the GPU, where there is one."""
    able = torch.cuda.is_available()
    if requested == "cuda" and not able:
        raise ValueError("train_model.device = cuda: PyTorch finds no GPU: set cpu, or auto")
    return "cuda" if able and requested != "cpu" else "cpu"


def choose_processes(requested: int | Literal["auto"], device: DeviceKind) -> int:
    """The number of processes to start; for `auto` one for each GPU, or one without a GPU."""
    if requested == "auto":
        return torch.cuda.device_count() if device == "cuda" else 1
    return requested


def is_launched() -> bool:
    """Whether `launch` or torchrun started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


@contextmanager
def join_process_group(kind: DeviceKind) -> Iterator[Group]:
    """Join the process group that the environment names; without one, the group is this process alone.

    Raises LostContactError if another process ends too early.
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
            raise LostContactError(f"process {os.environ['RANK']} of {size} lost contact to the others") from error
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


def shard(model: ChatModel, group: Group, *, compiled: bool) -> None:
    """Shard every weight over the processes, by FSDP; the weights of a layer are gathered while it computes."""
    mesh = init_device_mesh(group.device.type, (group.size,))
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    if compiled:
        for layer in layers:
            layer.compile(dynamic=False)
    for module in (*layers, model):
        sharded = fully_shard(module, mesh=mesh)
        sharded.set_force_sum_reduction_for_comms(True)  # gloo supports no other
        sharded.set_gradient_divide_factor(1.0)
    register_fsdp_forward_method(model, "nats")  # gathers the weights for it as for forward


def shard_like(full: Tensor, weight: Tensor) -> Tensor:
    """Shard a full tensor as `weight` is sharded; it may be a stack of tensors of that shape."""
    if not isinstance(weight, DTensor) or not full.ndim:
        return full
    dims = [placement.dim for placement in weight.placements if isinstance(placement, Shard)]
    placements = [Shard(dim + full.ndim - weight.ndim) for dim in dims]
    return distribute_tensor(full.to(weight.device), weight.device_mesh, placements, src_data_rank=None)


@torch.no_grad()
def load_full_state_dict(model: ChatModel, weights: Mapping[str, Tensor], group: Group) -> None:
    """Load the main process's full weights, of `Group.outline`, into a model whose own may be sharded."""
    for name, weight in model.state_dict().items():
        weight.copy_(shard_like(group.receive(weights[name]), weight))


def gradient_norm(weights: Iterable[nn.Parameter]) -> float:
    """The Euclidean norm of all gradients together; where they are sharded, all processes must call it."""
    norm = get_total_norm([weight.grad for weight in weights if weight.grad is not None])
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def launch(work: Callable[..., None], processes: int, arguments: Sequence[Any]) -> None:
    """Call `work` in several processes on this machine. Raises ValueError if one of them fails."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    workers: dict[Connection, BaseProcess] = {}
    for rank in range(processes):
        receiver, sender = context.Pipe(duplex=False)
        environment = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # the one above; else the first process would open another
        }
        worker = context.Process(target=_worker_main, args=(sender, environment, work, arguments), daemon=True)
        with scripts_on_path():
            worker.start()
        sender.close()
        workers[receiver] = worker
    try:
        with _forwarding_sigterm(workers.values()):
            _wait_for(workers)
    finally:
        for process in workers.values():
            process.kill()
            process.join()


def _worker_main(
    sender: Connection, environment: dict[str, str], work: Callable[..., None], arguments: Sequence[Any]
) -> None:
    """Run a process of `launch`; on errors it reports to the parent and waits, so that no connection breaks."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends its workers
    tqdm.set_lock(threading.RLock())  # tqdm's own lock would outlive a killed process, and Python warns of that
    os.environ.update(environment)
    try:
        work(*arguments)
    except LostContactError:
        threading.Event().wait()
    except (ValueError, OSError) as error:
        sender.send(error)
        threading.Event().wait()


@contextmanager
def _forwarding_sigterm(workers: Iterable[BaseProcess]) -> Iterator[None]:
    """Forward the first SIGTERM to all workers; a second one ends the parent, and the workers with it."""

    def forward(*_: Any) -> None:
        signal.signal(signal.SIGTERM, former)
        for worker in workers:
            worker.terminate()

    former = signal.signal(signal.SIGTERM, forward)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _wait_for(workers: dict[Connection, BaseProcess]) -> None:
    """Wait for all workers; raise the first error, and exit if SIGTERM stopped them."""
    running = dict(workers)
    while running:
        ready = wait(list(running))
        for receiver in [receiver for receiver in running if receiver in ready]:
            worker = running.pop(receiver)
            try:
                error: ValueError | OSError = receiver.recv()
            except EOFError:
                worker.join()
            else:
                raise error
            if worker.exitcode not in (0, SIGTERM_EXIT_CODE):
                raise ValueError(_ended(list(workers.values()).index(worker), len(workers), worker.exitcode))
    if any(worker.exitcode for worker in workers.values()):
        sys.exit(SIGTERM_EXIT_CODE)


def _ended(rank: int, size: int, code: int | None) -> str:
    if code == -signal.SIGKILL:
        return f"process {rank} of {size} was killed: if memory ran out, lower train_model.processes or batch_size"
    return f"process {rank} of {size} exited with code {code}: its error is above"
