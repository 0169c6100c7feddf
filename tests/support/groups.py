"""Functions that tests run in several processes, each of which imports them by name."""

import os
import signal

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from chatmill.training.distributed import joined, load_weights, shard
from chatmill.training.optimizer import Optimizer
from support.tiny import random_model


def local_bytes(tensors):
    local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def learn(group, sharded):
    """A model and its optimizer after a step."""
    model = random_model()
    if sharded:
        shard(model, group, compiled=False)
    optimizer = Optimizer(model, 0.01, torch.float32)
    model(torch.arange(group.rank, 20)[None]).square().mean().backward()
    optimizer.step(1.0)
    return model, optimizer


def state_of(model, optimizer):
    states = (state.values() for o in optimizer.optimizers for state in o.state.values())
    return [*model.parameters(), *(tensor for state in states for tensor in state)]


def check_shards(folder):
    with joined("cpu") as group:
        (model, optimizer), (whole_model, whole_optimizer) = (learn(group, sharded) for sharded in (True, False))
        parts, wholes = state_of(model, optimizer), state_of(whole_model, whole_optimizer)
        np.save(folder / f"{group.rank}.npy", [local_bytes(parts), local_bytes(wholes)])
        weights, states = group.share(group.whole([model.state_dict(), optimizer.state_dict()]))
        restored, other = learn(group, True)
        with torch.no_grad():
            [weight.zero_() for weight in restored.parameters()]
        load_weights(restored, weights)
        other.load_state_dict(states)
        pairs = zip(parts, state_of(restored, other), strict=True)
        np.save(folder / f"same{group.rank}.npy", [bool((a == b).all()) for a, b in pairs])


def fail(how):
    with joined("cpu") as group:
        if group.rank == 1:
            how()
        group.sum(torch.zeros(1))


def complain():
    raise ValueError("b.txt:2: bad: mend it")


def be_killed():
    os.kill(os.getpid(), signal.SIGKILL)
