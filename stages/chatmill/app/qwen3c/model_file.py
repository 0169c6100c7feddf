"""The model file of qwen3.c: a Qwen3 in groups of int8 weights with one scale each (Q8_0).

Little-endian, as the bytes lie (L layers, C channels, F channels of the feed-forward layers, H heads, K heads of keys
and values, D channels of a head, V tokens, G weights of a group):

    u32 0x616a6331    i32 version, 1
    i32 C, F, L, H, K, V, context, D, 1 if the head is the embedding, else 0, G        zeros up to byte 256
    f32 weights of norms: L times C before attention    L times C before the feed-forward layers    C at the end
                          L times D of queries          L times D of keys
    tensors:  V x C embedding
              L times H*D x C queries    L times K*D x C keys    L times K*D x C values    L times C x H*D output
              L times F x C gate         L times C x F down      L times F x C up          V x C head, if any
              each has all its int8 weights, row by row, and then all f32 scales: weight = int8 * scale of its group

The header has neither the rotary base nor the epsilon of norms: the engine's are 1e6 and 1e-6. For another base, heads
are written wider (chatmill.app.qwen3c.wider_heads).
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chatmill.app.qwen3c.wider_heads import widen, wider_config
from chatmill.checkpoints.configuration import ModelConfig, Variant

MAGIC, VERSION, HEADER_SIZE = 0x616A6331, 1, 256
ROPE_BASE, EPSILON = 1e6, 1e-6  # which the engine has as constants
GROUPS = (64, 32, 16, 8)  # sizes of groups, the engine's usual one first
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
NORMS = ("input_layernorm", "post_attention_layernorm")
HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
MATRICES = (
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "down", "up")),
)


def engine_config(config: ModelConfig) -> ModelConfig:
    """The shape in the engine's terms. Raises ValueError with the reason where the file cannot express it."""
    if reason := _missing_in_engine(config):
        raise unsupported(reason)
    wider = wider_config(config, ROPE_BASE)
    if wider is None:
        raise unsupported(f"its rotary base is 1e6, and no wider head has the frequencies of {config.rope_theta:g}")
    channels = wider.num_attention_heads * wider.head_dim
    if channels < wider.hidden_size:
        raise unsupported(f"its buffers have {channels:,} channels of all heads, and the model {wider.hidden_size:,}")
    if _group_size(wider) is None:
        raise unsupported("the rows of its matrices are groups of 8 weights or more, which do not fill these rows")
    context = min(config.max_position_embeddings, config.variant.sliding_window or config.max_position_embeddings)
    return replace(wider, max_position_embeddings=context, variant=Variant())


def write_model_file(file: Path, config: ModelConfig, weights: Mapping[str, Tensor], vocab_size: int) -> ModelConfig:
    """Write the first `vocab_size` tokens of a model, one tensor at a time; return the shape as it was written.

    Raises ValueError where the file cannot express the shape.
    """
    shape = replace(engine_config(config), vocab_size=vocab_size, tie_word_embeddings=HEAD not in weights)
    group = _group_size(shape)
    assert group, "checked by engine_config"
    numbers = (
        *(shape.hidden_size, shape.intermediate_size, shape.num_hidden_layers),
        *(shape.num_attention_heads, shape.num_key_value_heads, vocab_size),
        *(shape.max_position_embeddings, shape.head_dim, shape.tie_word_embeddings, group),
    )
    with file.open("wb") as out:
        out.write(struct.pack("<Ii10i", MAGIC, VERSION, *numbers).ljust(HEADER_SIZE, b"\0"))
        for name in _tensor_names(shape):
            weight = widen(name, weights[name].to(torch.float32), config.head_dim, shape.head_dim)
            if name in (EMBEDDING, HEAD):
                weight = weight[:vocab_size]
            parts = [weight.numpy()] if weight.ndim == 1 else quantize(weight.numpy(), group)
            for part in parts:
                out.write(np.ascontiguousarray(part, part.dtype.newbyteorder("<")).data)
    return shape


def quantize(weight: NDArray[np.float32], group: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """float32 (N, C) -> int8 (N * C / group, group) and float32 scales; a group of zeros has the scale 0."""
    groups = weight.reshape(-1, group)
    scales = np.abs(groups).max(axis=1) / np.float32(127)
    divisors = np.where(scales == 0, np.float32(1), scales)
    return np.rint(groups / divisors[:, None]).astype(np.int8), scales


def _tensor_names(shape: ModelConfig) -> Iterator[str]:
    layers = range(shape.num_hidden_layers)
    for norm in NORMS:
        yield from (f"model.layers.{layer}.{norm}.weight" for layer in layers)
    yield "model.norm.weight"
    for norm in HEAD_NORMS:
        yield from (f"model.layers.{layer}.{norm}.weight" for layer in layers)
    yield EMBEDDING
    for matrix in MATRICES:
        yield from (f"model.layers.{layer}.{matrix}.weight" for layer in layers)
    if not shape.tie_word_embeddings:
        yield HEAD


def _group_size(shape: ModelConfig) -> int | None:
    """The size of groups that fill the rows of all matrices."""
    rows = (shape.hidden_size, shape.intermediate_size, shape.num_attention_heads * shape.head_dim)
    return next((group for group in GROUPS if not any(row % group for row in rows)), None)


def unsupported(reason: str) -> ValueError:
    """The error of a model that the file cannot express; `reason` is what the engine has or lacks."""
    remedy = "`chatmill chat` runs it, and where they have the shape, transformers, llama.cpp and ONNX Runtime"
    return ValueError(f"the Q8_0 file of qwen3.c cannot express the model: {reason}: {remedy}")


def _missing_in_engine(config: ModelConfig) -> str | None:
    """What the engine has or lacks, other than the model; None if nothing."""
    variant = config.variant
    if not variant.qk_norm:
        return "it normalises queries and keys, as Qwen3 does"
    if variant.qkv_bias or variant.output_bias or variant.mlp_bias:
        return "it has no biases"
    if variant.rope_scaling:
        return "its rotary frequencies are not scaled"
    if config.rms_norm_eps != EPSILON:
        return f"the epsilon of its norms is {EPSILON:g}, and not {config.rms_norm_eps:g}"
    return None
