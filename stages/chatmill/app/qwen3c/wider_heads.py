"""The rotary frequencies of a model, expressed in those of an engine whose rotary base is fixed.

Shapes: H heads, D channels of a head, W channels of a wider head, C channels of the model.

A head of D channels has the frequencies base^(-2i/D), i < D/2. A head of W = D * ln(engine's base) / ln(base) channels
has the same ones in the engine's base, and W/2 - D/2 more, on which zeros are put. The scores are the same if the
weights of the norms make up for the size of the head:

    RMSNorm over W channels gives sqrt(W/D) times as much       for queries and for keys
    scores are divided by sqrt(W) and not by sqrt(D)            sqrt(D/W) times as much

so that the weights for queries remain, and those for keys are multiplied by sqrt(D/W). Only the epsilon of these two
norms counts W/D times as much. Zeros among the values are spread, so that no group of activations is zeros alone.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from chatmill.checkpoints.configuration import ModelConfig


def wider_config(config: ModelConfig, base: float) -> ModelConfig | None:
    """The shape with another rotary base; None where no even number of channels has all frequencies."""
    wide = config.head_dim * math.log(base) / math.log(config.rope_theta) if config.rope_theta > 1 else 0
    width = round(wide)
    if width < config.head_dim or width % 2 or not math.isclose(wide, width, rel_tol=1e-9):
        return None
    return replace(config, head_dim=width, rope_theta=base)


def widen(name: str, weight: Tensor, narrow: int, wide: int) -> Tensor:
    """A weight by its Hugging Face name, for heads of `wide` instead of `narrow` channels."""
    if narrow == wide:
        return weight
    match name.split(".")[-2]:
        case "q_proj" | "k_proj":  # (H * D, C) -> (H * W, C)
            return _in_halves(weight, narrow, wide)
        case "q_norm":  # (D,) -> (W,)
            return _in_halves(weight, narrow, wide)
        case "k_norm":
            return _in_halves(weight * math.sqrt(narrow / wide), narrow, wide)
        case "v_proj":
            return _spread(weight, narrow, wide)
        case "o_proj":  # (C, H * D) -> (C, H * W)
            return _spread(weight.T, narrow, wide).T.contiguous()
    return weight


def _in_halves(weight: Tensor, narrow: int, wide: int) -> Tensor:
    """(H * D, …) -> (H * W, …): zeros after each half of a head, as channels of two halves are rotated."""
    halves = weight.reshape(-1, narrow // 2, *weight.shape[1:])
    zeros = halves.new_zeros(len(halves), (wide - narrow) // 2, *weight.shape[1:])
    return torch.cat([halves, zeros], dim=1).flatten(0, 1)


def _spread(weight: Tensor, narrow: int, wide: int) -> Tensor:
    """(H * D, C) -> (H * W, C): zeros between the channels of a head."""
    heads = weight.reshape(-1, narrow, weight.shape[-1])
    result = heads.new_zeros(len(heads), wide, weight.shape[-1])
    result[:, [channel * wide // narrow for channel in range(narrow)]] = heads
    return result.flatten(0, 1)
