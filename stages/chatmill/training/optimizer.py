"""The optimizers. A new model: Muon for the matrices of the layers, AdamW for the embedding and the gains. A model that
starts from another one: AdamW alone, since equal steps in all directions undo what was learnt.

Muon (kellerjordan.github.io/posts/muon) replaces a matrix's momentum by the nearest orthogonal matrix, so that updates
are equally large in every direction. chatmill/run_display.py counts the memory of the optimizers' states.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from chatmill.model.chat_model import ChatModel
from chatmill.model.layers import Layer
from chatmill.soft_tokenizer.byte_embedding import ByteEncoder
from chatmill.training.distributed import Group, shard_like

MUON_RATE = 0.012
ADAMW_RATE = 0.0864  # for one channel: 1.5e-4 at 576 channels; SmolLM2 learnt a manner, and a text took 21 % more bits
ADAPTER_FACTOR = 3  # of that rate, for adapters; at 7 times a rank of 32 forgot twice as much as all weights did
_MOMENTUM = 0.85  # 0.9 gave the same bits per byte after a million tokens; 0.95, with other rates, a tenth more
_EMBEDDING_RATE_FACTOR = 0.9  # of the matrices' rate, at 256 channels; 1.3 gave a tenth more bits per byte
_BYTE_ENCODER_RATE_FACTOR = 0.6  # of the embedding's rate; 1 gave a thirtieth more bits per byte
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # pulls all singular values near 1 within five steps


def orthogonalise(x: Tensor, steps: int = 5) -> Tensor:
    """(B, M, N) -> (B, M, N): singular values brought to about 1 by Newton-Schulz steps."""
    a, b, c = _NEWTON_SCHULZ
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum, computed together for matrices of equal shape; `precision` is that of the products."""

    def __init__(self, matrices: list[nn.Parameter], lr: float, precision: torch.dtype) -> None:
        by_shape = defaultdict(list)
        for matrix in matrices:
            by_shape[matrix.shape].append(matrix)
        super().__init__([{"params": group} for group in by_shape.values()], {"lr": lr})
        self.precision = precision

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # no closure: gradients are computed before
        """Change every matrix by `lr` in each direction, and by more if it has more rows than columns."""
        for group in self.param_groups:
            matrices = group["params"]
            gradients = torch.stack([matrix.grad for matrix in matrices])
            state = self.state[matrices[0]]
            if not state:
                state["momentum"] = torch.zeros_like(gradients)
            momentum = state["momentum"].lerp_(gradients, 1 - _MOMENTUM)
            updates = self._direction(gradients.lerp(momentum, _MOMENTUM))
            scale = max(1.0, updates.shape[-2] / updates.shape[-1]) ** 0.5
            for matrix, update in zip(matrices, updates, strict=True):
                matrix.add_(update, alpha=-group["lr"] * scale)

    def _direction(self, momentum: Tensor) -> Tensor:
        """Where the momentum is sharded, each process gathers it and keeps its shard of the result."""
        full = momentum.full_tensor() if isinstance(momentum, DTensor) else momentum
        direction = orthogonalise(full.to(self.precision)).to(momentum.dtype)
        if not isinstance(momentum, DTensor):
            return direction
        whole = DTensor.from_local(direction, momentum.device_mesh, [Replicate()], run_check=False)
        return whole.redistribute(placements=momentum.placements)


class Optimizers:
    """Several optimizers behind one interface."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers
        for group in self._groups():
            group["full_rate"] = group["lr"]

    def _groups(self) -> Iterator[dict[str, Any]]:
        return chain.from_iterable(optimizer.param_groups for optimizer in self.optimizers)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the last step: Muon's, or AdamW's where there is no Muon."""
        return float(next(self._groups())["lr"])

    def step(self, factor: float) -> None:
        """Update the weights at `factor` times the full learning rates, and clear the gradients."""
        for group in self._groups():
            group["lr"] = factor * group["full_rate"]
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def state_dict(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer in self.optimizers]

    def load_state_dict(self, states: list[dict[str, Any]], group: Group) -> None:
        """Restore a checkpoint that `Group.broadcast` gave; the main process has the full tensors, and sends them."""
        for optimizer, state in zip(self.optimizers, states, strict=True):
            weights = [weight for part in optimizer.param_groups for weight in part["params"]]
            of_weights = {
                i: {name: shard_like(group.receive(value), weights[i]).clone() for name, value in values.items()}
                for i, values in state["state"].items()
            }
            optimizer.load_state_dict({**state, "state": of_weights})


def muon_adamw(model: ChatModel, learning_rate: float, precision: torch.dtype) -> Optimizers:
    """Muon, at `learning_rate`, for the matrices of layers; AdamW for all else, a byte encoder by another rate."""
    of_layers = [pair for module in model.modules() if isinstance(module, Layer) for pair in module.named_parameters()]
    matrices = [weight for name, weight in of_layers if weight.ndim == 2 and "embed" not in name]
    encoders = [module for module in model.modules() if isinstance(module, ByteEncoder)]
    taken = {id(weight) for weight in matrices}
    of_bytes = [weight for encoder in encoders for weight in encoder.parameters() if id(weight) not in taken]
    taken |= {id(weight) for weight in of_bytes}
    rate = learning_rate * _EMBEDDING_RATE_FACTOR * (256 / model.config.hidden_size) ** 0.5
    groups: list[dict[str, Any]] = [{"params": [weight for weight in model.parameters() if id(weight) not in taken]}]
    if of_bytes:
        groups.append({"params": of_bytes, "lr": rate * _BYTE_ENCODER_RATE_FACTOR})
    adam = torch.optim.AdamW(groups, lr=rate, betas=(0.8, 0.95), eps=1e-10, weight_decay=0.0)
    return Optimizers([Muon(matrices, learning_rate, precision), adam])


def adamw(model: ChatModel, learning_rate: float) -> Optimizers:
    """The optimizer of a model that starts from another one: AdamW on the weights that are trained."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    fused = all(weight.device.type in ("cpu", "cuda") and not isinstance(weight, DTensor) for weight in weights)
    return Optimizers([torch.optim.AdamW(weights, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=fused)])


def default_rate(model: ChatModel, *, is_new: bool, has_adapters: bool = False) -> float:
    """The learning rate where none is given: Muon's, or one of AdamW that falls with the width."""
    return MUON_RATE if is_new else ADAMW_RATE * (ADAPTER_FACTOR if has_adapters else 1) / model.config.hidden_size


def learning_rate_factor(step: int, steps: int) -> float:
    """The fraction of the full learning rate at a step, counted from 0: warm-up, plateau, linear decay to the end."""
    warm_up, warm_down = max(1, steps // 50), max(1, steps // 2)
    return min(1.0, (step + 1) / warm_up, (steps - step) / warm_down)
