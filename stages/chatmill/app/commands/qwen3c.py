"""Converts a model to the Q8_0 files of qwen3.c, an engine that is one file of C.

Shapes: H heads, D channels of a head, W channels of a wider head, C channels of the model.

A head of D channels has the frequencies base^(-2i/D), i < D/2. A head of W = D * ln(engine's base) / ln(base) channels
has the same ones in the engine's base, and W/2 - D/2 more, on which zeros are put. The scores are the same if the
weights of the norms make up for the size of the head:

    RMSNorm over W channels gives sqrt(W/D) times as much       for queries and for keys
    scores are divided by sqrt(W) and not by sqrt(D)            sqrt(D/W) times as much

so that the weights for queries remain, and those for keys are multiplied by sqrt(D/W). Only the epsilon of these two
norms counts W/D times as much. Zeros among the values are spread, so that no group of activations is zeros alone.
"""

import argparse
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from chatmill.app import arguments
from chatmill.app.page.content import quantize_rows
from chatmill.checkpoints.configuration import ModelConfig, Variant
from chatmill.conversation import Message
from chatmill.gguf_export.gguf_files import read_source
from chatmill.inference.chat_template import ChatTemplate
from chatmill.tokenizer.formats.binary import greedy_unsupported_reason, write_binary

# The rotary frequencies of a model, expressed in those of an engine whose rotary base is fixed.


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
        case "q_proj" | "k_proj" | "q_norm":  # (H * D, C) -> (H * W, C), (D,) -> (W,)
            return _in_halves(weight, narrow, wide)
        case "k_norm":
            return _in_halves(weight * math.sqrt(narrow / wide), narrow, wide)
        case "v_proj":
            return _spread(weight, narrow, wide)
        case "o_proj":  # (C, H * D) -> (C, H * W)
            return _spread(weight.T, narrow, wide).T.contiguous()
    return weight


def _in_halves(weight: Tensor, narrow: int, wide: int) -> Tensor:
    """(H * D, …) -> (H * W, …): zeros after each half of a head, as channel i is rotated with channel i + D / 2."""
    halves = weight.reshape(-1, narrow // 2, *weight.shape[1:])
    zeros = halves.new_zeros(len(halves), (wide - narrow) // 2, *weight.shape[1:])
    return torch.cat([halves, zeros], dim=1).flatten(0, 1)


def _spread(weight: Tensor, narrow: int, wide: int) -> Tensor:
    """(H * D, C) -> (H * W, C): zeros between the channels of a head."""
    heads = weight.reshape(-1, narrow, weight.shape[-1])
    result = heads.new_zeros(len(heads), wide, weight.shape[-1])
    result[:, [channel * wide // narrow for channel in range(narrow)]] = heads
    return result.flatten(0, 1)


# The model file of qwen3.c: a Qwen3 in groups of int8 weights with one scale each (Q8_0).

MAGIC, VERSION, HEADER_SIZE = 0x616A6331, 1, 256
ROPE_BASE, EPSILON = 1e6, 1e-6  # which the engine has as constants
GROUPS = (64, 32, 16, 8)  # sizes of groups, the engine's usual one first
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
NORMS = ("input_layernorm", "post_attention_layernorm")
HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
MATRICES = (*(f"self_attn.{name}_proj" for name in "qkvo"), *(f"mlp.{name}_proj" for name in ("gate", "down", "up")))


def engine_config(config: ModelConfig) -> ModelConfig:
    """The shape in the engine's terms. Raises ValueError with the reason where the file cannot express it."""
    window, wider = config.variant.sliding_window, wider_config(config, ROPE_BASE)
    if config.variant != Variant(sliding_window=window):
        raise unsupported("it normalises queries and keys as Qwen3 does, has no biases, and scales no frequencies")
    if config.rms_norm_eps != EPSILON:
        raise unsupported(f"the epsilon of its norms is {EPSILON:g}, and not {config.rms_norm_eps:g}")
    if wider is None:
        raise unsupported(f"its rotary base is 1e6, and no wider head has the frequencies of {config.rope_theta:g}")
    channels = wider.num_attention_heads * wider.head_dim
    if channels < wider.hidden_size:
        raise unsupported(f"its buffers have {channels:,} channels of all heads, and the model {wider.hidden_size:,}")
    if _group_size(wider) is None:
        raise unsupported("the rows of its matrices are groups of 8 weights or more, which do not fill these rows")
    context = min(config.max_position_embeddings, window or config.max_position_embeddings)
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
            parts: list[np.ndarray] = [weight.numpy()]
            if weight.ndim > 1:  # int8 in groups, then their scales
                scales, rounded = quantize_rows(weight.reshape(-1, group).numpy())
                parts = [rounded, scales]
            for part in parts:
                out.write(np.ascontiguousarray(part, part.dtype.newbyteorder("<")).data)
    return shape


def _tensor_names(shape: ModelConfig) -> list[str]:
    def layers(names: Sequence[str]) -> list[str]:
        return [f"model.layers.{layer}.{name}.weight" for name in names for layer in range(shape.num_hidden_layers)]

    head = [] if shape.tie_word_embeddings else [HEAD]
    return [*layers(NORMS), "model.norm.weight", *layers(HEAD_NORMS), EMBEDDING, *layers(MATRICES), *head]


def _group_size(shape: ModelConfig) -> int | None:
    rows = (shape.hidden_size, shape.intermediate_size, shape.num_attention_heads * shape.head_dim)
    return next((group for group in GROUPS if not any(row % group for row in rows)), None)


def unsupported(reason: str) -> ValueError:
    """The error of a model that the file cannot express; `reason` is what the engine has or lacks."""
    remedy = "`chatmill chat` runs it, and where they have the shape, transformers, llama.cpp and ONNX Runtime"
    return ValueError(f"the Q8_0 file of qwen3.c cannot express the model: {reason}: {remedy}")


# The files with which qwen3.c chats: the model, the tokenizer, and the prompts as templates of C's printf.

MODEL = "model.bin"
MAX_TEMPLATE = 1023  # bytes that the engine reads, without the zero at the end
_USER, _SYSTEM = "chatmill-user-text", "chatmill-system-text"


def export_qwen3c(model: Path, out: Path) -> str | None:
    """Write the files into a new folder; return why some texts get other ids in the engine, None if all get the same.

    Raises ValueError where the files cannot express the model.
    """
    source = read_source(model)
    vocabulary = source.tokenizer.vocabulary
    if source.template is None:
        raise ValueError(f"{model}: its chat template is not known, and qwen3.c needs prompts: use transformers")
    if len(vocabulary.tokens) > source.config.vocab_size:
        raise ValueError(f"{model}: {len(vocabulary.tokens):,} tokens, but rows for {source.config.vocab_size:,}")
    engine_config(source.config)  # raises before anything is written
    plain, with_system = _prompt(source.template, []), _prompt(source.template, [_SYSTEM])
    out.mkdir()
    write_model_file(out / MODEL, source.config, source.weights, len(vocabulary.tokens))
    write_binary(vocabulary, out / f"{MODEL}.tokenizer")
    for suffix in ("", ".with-thinking"):
        (out / f"{MODEL}.template{suffix}").write_bytes(plain)
    for suffix in ("", "-and-thinking"):
        (out / f"{MODEL}.template.with-system{suffix}").write_bytes(with_system)
    if vocabulary.algorithm == "merge" and vocabulary.pattern is not None:
        return greedy_unsupported_reason(vocabulary) or "it merges without splitting the text first"
    return greedy_unsupported_reason(vocabulary)


def _prompt(template: ChatTemplate, system: list[str]) -> bytes:
    """A prompt for printf. Raises ValueError where it is longer than the engine reads."""
    messages = [*(Message.from_text("system", text) for text in system), Message.from_text("user", _USER)]
    text = "".join(segment.text for segment in template.prompt(messages)).replace("%", "%%")
    data = text.replace(_SYSTEM, "%s").replace(_USER, "%s").encode()
    if len(data) > MAX_TEMPLATE:
        raise ValueError(f"qwen3.c reads prompts of {MAX_TEMPLATE:,} bytes, and the template has {len(data):,}")
    return data


# Convert a model to the Q8_0 files of qwen3.c, an engine that is one file of C.

EPILOG = """examples:
  chatmill qwen3c data/model exported/qwen3c
  runq exported/qwen3c/model.bin -t 0

OUT gets model.bin, and beside it the tokenizer and the prompts that the engine
looks for. A model whose shape the file cannot express is refused with the
reason. The engine does not escape what a user types: a control token's name
becomes the token.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("model", type=Path, metavar="MODEL", help="a folder of the pipeline, or of Hugging Face with a Qwen3")
    add("out", type=Path, metavar="OUT", help="new folder to write the files into")


def run(options: argparse.Namespace) -> None:
    arguments.check_model_folder(options.model)
    with arguments.new_output(options.out) as place:
        reason = export_qwen3c(options.model, place)
    print(f"{options.out / MODEL}: {(options.out / MODEL).stat().st_size / 1e6:,.1f} MB")
    if reason:
        print(f"some texts get other ids in qwen3.c: {reason}")
