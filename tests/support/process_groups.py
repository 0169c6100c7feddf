"""Functions that tests run in several processes, each of which imports them by name."""

import os
import socket
import weakref

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from chatmill.training.checkpoint import tensors_of, write_state
from chatmill.training.distributed import join_process_group, load_full_state_dict, shard
from chatmill.training.optimizer import muon_adamw
from support.tiny import random_model


def in_processes(work, processes, arguments):
    """Call a function of this module in several processes that form a group."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    torch.multiprocessing.spawn(_work, (work, processes, port, arguments), nprocs=processes)


def _work(rank, work, processes, port, arguments):
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    os.environ |= {name: str(value) for name, value in numbers.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    work(*arguments)


def local_bytes(tensors):
    local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def train_step(group, sharded):
    """A model and its optimizer after a step."""
    model = random_model()
    if sharded:
        shard(model, group, compiled=False)
    optimizer = muon_adamw(model, 0.01, torch.float32)
    model(torch.arange(group.rank, 20)[None]).square().mean().backward()
    optimizer.step(1.0)
    return model, optimizer


def state_of(model, optimizer):
    states = (state.values() for o in optimizer.optimizers for state in o.state.values())
    return [*model.parameters(), *(tensor for state in states for tensor in state)]


def check_shards(folder):
    with join_process_group("cpu") as group:
        (model, optimizer), (whole_model, whole_optimizer) = (train_step(group, sharded) for sharded in (True, False))
        parts, wholes = state_of(model, optimizer), state_of(whole_model, whole_optimizer)
        np.save(folder / f"{group.rank}.npy", [local_bytes(parts), local_bytes(wholes)])
        weights, states = group.outline(group.gather_full([model.state_dict(), optimizer.state_dict()]))
        restored, other = train_step(group, True)
        with torch.no_grad():
            [weight.zero_() for weight in restored.parameters()]
        load_full_state_dict(restored, weights, group)
        other.load_state_dict(states, group)
        pairs = zip(parts, state_of(restored, other), strict=True)
        np.save(folder / f"same{group.rank}.npy", [bool((a == b).all()) for a, b in pairs])


def count_held(folder):
    """Save a sharded state, and write how many of its whole tensors the main process held at once."""
    with join_process_group("cpu") as group:
        model, optimizer = train_step(group, True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        seen, held = [], []

        def watched():
            for tensor in group.gather_each(tensors_of(state)):
                if tensor.ndim:  # numbers are not sharded
                    seen.append(weakref.ref(tensor))
                held.append(sum(one() is not None for one in seen))
                yield tensor

        tensors = watched()
        if group.is_main_process:
            write_state(state, tensors, folder / "state")
            np.save(folder / "held.npy", held)
        assert not [*tensors]
