"""Low-rank adapters (LoRA, arXiv:2106.09685): all that is trained of a model whose own weights stay as they are."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from chatmill.model.chat_model import ChatModel
from chatmill.model.layers import Layer

ALPHA = 2.0  # the weight of the product of both matrices; in terms of PEFT, alpha is so many times the rank
DOWN, UP, OWN = "lora_A.weight", "lora_B.weight", "linear.weight"
PEFT_PREFIX = "base_model.model."


class _Adapted(torch.autograd.Function):
    """x (…, M), weight (N, M), bias (N,) or None, down (R, M), up (N, R) -> (…, N), a linear layer.

    `weight` is the sum of a fixed one and of ALPHA times up @ down, and only down and up have gradients: so a forward
    pass has one product in place of three, and one backward two large ones and four small ones.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, down, up)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, down, up = ctx.saved_tensors
        of_y, rows = gradients[0].flatten(0, -2), x.flatten(0, -2)
        of_down = ALPHA * (of_y @ up).mT @ rows
        of_up = ALPHA * of_y.mT @ (rows @ down.mT)
        return gradients[0] @ weight, None, None, of_down, of_up


class LowRank(nn.Module):
    """A linear layer, (…, M) -> (…, N), whose weight stays, and a product of rank R that is trained beside it."""

    def __init__(self, linear: nn.Linear, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = linear
        self.lora_A = nn.Linear(linear.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, linear.out_features, bias=False)
        bound = 1 / math.sqrt(linear.in_features)
        with torch.no_grad():
            self.lora_A.weight.uniform_(-bound, bound, generator=generator)
            self.lora_B.weight.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both."""
        down, up, device = self.lora_A.weight, self.lora_B.weight, x.device.type
        if not torch.is_grad_enabled():  # for a few tokens, the sum of the weights would take longer
            return F.linear(x, self.linear.weight, self.linear.bias) + ALPHA * F.linear(F.linear(x, down), up)
        weight = (self.linear.weight + ALPHA * (up @ down)).detach()
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        bias = None if self.linear.bias is None else self.linear.bias.to(dtype)
        apply: Callable[..., Tensor] = _Adapted.apply
        return apply(x.to(dtype), weight.to(dtype), bias, down.to(dtype), up.to(dtype))


def add_adapters(model: ChatModel, rank: int, seed: int) -> None:
    """Put an adapter beside each linear layer, and let nothing else be trained."""
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for layer in (module for module in model.modules() if isinstance(module, Layer)):
        for name, linear in [pair for pair in layer.named_modules() if isinstance(pair[1], nn.Linear)]:
            parent, _, attribute = name.rpartition(".")
            setattr(layer.get_submodule(parent), attribute, LowRank(linear, rank, generator))


def merged(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model with adapters as those of one without: each product is added to the weight beside it."""
    result = {}
    for name, weight in weights.items():
        if name.endswith(OWN):
            module = name.removesuffix(OWN)
            weight = weight + ALPHA * weights[f"{module}{UP}"] @ weights[f"{module}{DOWN}"]
        if not name.endswith((DOWN, UP)):
            result[name.replace(".linear.", ".")] = weight
    return result


def write_adapter(folder: Path, weights: dict[str, Tensor], base: Path) -> None:
    """Write the adapters of a model as the package PEFT reads them, for the model that training started from."""
    folder.mkdir()
    own = {name: weight.contiguous() for name, weight in weights.items() if name.endswith((DOWN, UP))}
    tensors = {f"{PEFT_PREFIX}{name}": weight for name, weight in own.items()}
    rank = next(len(weight) for name, weight in own.items() if name.endswith(DOWN))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.name,
        "r": rank,
        "lora_alpha": ALPHA * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.split(".")[-3] for name in tensors}),
    }
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
