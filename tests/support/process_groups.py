"""Functions that tests run in several processes, each of which imports them by name."""

import os
import socket
import weakref

import numpy as np
import torch

from chatmill.training.checkpoint import tensors_of, write_state
from chatmill.training.distributed import join_process_group, shard
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


def sharded_step(group):
    """A sharded model and its optimizer after a step."""
    model = random_model()
    shard(model, group)
    optimizer = muon_adamw(model, 0.01, torch.float32)
    model(torch.arange(group.rank, 20)[None]).square().mean().backward()
    optimizer.step(1.0)
    return model, optimizer


def count_held(folder):
    """Save a sharded state, and write how many of its whole tensors the main process held at once."""
    with join_process_group("cpu") as group:
        model, optimizer = sharded_step(group)
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
