"""Reads a model file of qwen3.c, independently of the writer, as a model for PyTorch."""

import struct

import numpy as np
import torch

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.model.chat_model import ChatModel


class Bytes:
    """The bytes of a file, read one after another."""

    def __init__(self, data):
        self.data, self.place = data, 256

    def floats(self, *shape):
        count = int(np.prod(shape))
        values = np.frombuffer(self.data, "<f4", count, self.place).reshape(shape)
        self.place += 4 * count
        return torch.from_numpy(values.copy())

    def matrix(self, rows, columns, group):
        """int8 and then scales, dequantized."""
        values = np.frombuffer(self.data, np.int8, rows * columns, self.place).reshape(-1, group)
        self.place += rows * columns
        scales = self.floats(len(values), 1)
        return (torch.from_numpy(values.astype(np.float32)) * scales).reshape(rows, columns)


def dequantized_model(file):
    """The model of a file, with the constants that qwen3.c has in its source."""
    data = file.read_bytes()
    assert struct.unpack_from("<Ii", data) == (0x616A6331, 1)
    c, f, layers, h, k, v, context, d, tied, group = struct.unpack_from("<10i", data, 8)
    assert data[48:256] == bytes(208)
    read, weights, each = Bytes(data), {}, range(layers)
    for name, size in {"input_layernorm": c, "post_attention_layernorm": c}.items():
        weights |= {f"model.layers.{i}.{name}.weight": read.floats(size) for i in each}
    weights["model.norm.weight"] = read.floats(c)
    for name in ("q_norm", "k_norm"):
        weights |= {f"model.layers.{i}.self_attn.{name}.weight": read.floats(d) for i in each}
    weights["model.embed_tokens.weight"] = read.matrix(v, c, group)
    for name, rows, columns in [
        ("self_attn.q_proj", h * d, c),
        ("self_attn.k_proj", k * d, c),
        ("self_attn.v_proj", k * d, c),
        ("self_attn.o_proj", c, h * d),
        ("mlp.gate_proj", f, c),
        ("mlp.down_proj", c, f),
        ("mlp.up_proj", f, c),
    ]:
        weights |= {f"model.layers.{i}.{name}.weight": read.matrix(rows, columns, group) for i in each}
    if not tied:
        weights["lm_head.weight"] = read.matrix(v, c, group)
    assert read.place == len(data)
    config = ModelConfig(
        vocab_size=v,
        hidden_size=c,
        intermediate_size=f,
        num_hidden_layers=layers,
        num_attention_heads=h,
        num_key_value_heads=k,
        head_dim=d,
        max_position_embeddings=context,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        tie_word_embeddings=bool(tied),
    )
    model = ChatModel(config)
    model.load_state_dict(weights)
    return model.eval()
