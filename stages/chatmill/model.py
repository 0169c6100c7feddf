"""A small decoder-only transformer, exactly Qwen3-shaped: its weights carry the names of Qwen3ForCausalLM.

Llama, Mistral and Qwen2 are variants of it.

Shapes: B batch, T time (tokens), S time with the cached past, C channels, H heads, K key-value heads, D head size,
V vocabulary.
"""

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from chatmill.attention import attend
from chatmill.manifest import check_manifest

FIRST_LENGTH = 512  # tokens that a new cache has room for; it grows as it is filled
FIRST_POSITIONS = 1 << 15  # that the tables of rotations begin with, where the context has more


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Slower rotations, by `factor`, than the model was first trained with.

    Slowed are those that turn fewer than `low_freq_factor` times within the original context, left those that turn more
    than `high_freq_factor` times, and between is between: Llama 3's way. An original context of 0 slows all alike.
    """

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0

    def slowed(self, frequencies: Tensor) -> Tensor:
        """(D/2,) -> (D/2,) in radians a position."""
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = kept.clamp(0, 1)
        return (1 - kept) * frequencies / self.factor + kept * frequencies


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What other families of models do otherwise. The defaults are Qwen3's."""

    qk_norm: bool = True  # queries and keys are normalised
    qkv_bias: bool = False  # of queries, keys and values
    output_bias: bool = False  # of what attention gives
    mlp_bias: bool = False
    rope_scaling: RopeScaling | None = None
    sliding_window: int | None = None  # a position sees so many: itself and those before it


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a model, in the field names of a Qwen3 config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    variant: Variant = Variant()

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads = {self.num_attention_heads} is no multiple of "
                f"num_key_value_heads = {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim = {self.head_dim} is odd: rotary positions need pairs of channels")

    @classmethod
    def from_depth(
        cls, depth: int, *, vocab_size: int, context: int, width: int | None = None, heads: int | None = None
    ) -> "ModelConfig":
        """The shape that one dial gives: 64 channels and one head a layer, so 12 layers are as large as GPT-2 small."""
        width = width or 64 * depth
        heads = heads or -(-width // 64)
        if width % (2 * heads):
            raise ValueError(f"a width of {width} channels is no even number for each of {heads} heads")
        return cls(
            vocab_size=vocab_size,
            hidden_size=width,
            intermediate_size=64 * max(1, round(width / 24)),  # 8/3 of the width
            num_hidden_layers=depth,
            num_attention_heads=heads,
            num_key_value_heads=heads if heads % 2 else heads // 2,
            head_dim=width // heads,
            max_position_embeddings=context,
        )

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "ModelConfig":
        """The shape in a config.json. Raises ValueError where it is no Qwen3 model's, or lacks a field."""
        if content.get("model_type") != "qwen3":
            raise ValueError(f"model_type {content.get('model_type')!r}: expected 'qwen3'")
        rope = content.get("rope_parameters") or {}
        content = {"rope_theta": rope.get("rope_theta"), **content}
        names = [field.name for field in fields(cls) if field.name != "variant"]
        if missing := [name for name in names if content.get(name) is None]:
            raise ValueError(f"no {', '.join(missing)}")
        return cls(**{name: content[name] for name in names})

    def to_json(self) -> dict[str, Any]:
        """What a Qwen3 config.json says of the shape; `from_json` inverts it."""
        assert self.variant == Variant(), "only a Qwen3 is written"
        shape = asdict(self)
        del shape["variant"]
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "dtype": "float32",
            "hidden_act": "silu",
            "attention_bias": False,
            **shape,
        }


class Cache:
    """Keys and values of the past, (B, K, S, D) for each layer; setting `length` back rewinds it.

    They are of the kind that `weight` is, and grow by doubling.
    """

    def __init__(self, config: ModelConfig, batch: int, length: int, weight: Tensor) -> None:
        shape = (batch, config.num_key_value_heads, min(length, FIRST_LENGTH), config.head_dim)
        self.keys = [weight.new_zeros(shape) for _ in range(config.num_hidden_layers)]
        self.values = [weight.new_zeros(shape) for _ in range(config.num_hidden_layers)]
        self.capacity = length
        self.length = 0

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Two (B, K, T, D) -> two (B, K, S, D): written after the past, which the last layer then lengthens."""
        end = self.length + keys.shape[2]
        if end > self.capacity:
            raise ValueError(f"{end} tokens do not fit into a cache of {self.capacity}")
        if end > self.keys[layer].shape[2]:
            self.keys[layer], self.values[layer] = (self._grown(kept[layer], end) for kept in (self.keys, self.values))
        self.keys[layer][:, :, self.length : end] = keys
        self.values[layer][:, :, self.length : end] = values
        if layer == len(self.keys) - 1:
            self.length = end
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def _grown(self, kept: Tensor, end: int) -> Tensor:
        B, K, S, D = kept.shape
        grown = kept.new_zeros(B, K, min(self.capacity, max(end, 2 * S)), D)
        grown[:, :, : self.length] = kept[:, :, : self.length]
        return grown


class Attention(nn.Module):
    """Grouped-query attention, in Qwen3 with normalised queries and keys."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        width, size, variant = config.hidden_size, config.head_dim, config.variant
        self.layer, self.head_dim = layer, size
        self.q_proj = nn.Linear(width, config.num_attention_heads * size, bias=variant.qkv_bias)
        self.k_proj = nn.Linear(width, config.num_key_value_heads * size, bias=variant.qkv_bias)
        self.v_proj = nn.Linear(width, config.num_key_value_heads * size, bias=variant.qkv_bias)
        self.o_proj = nn.Linear(config.num_attention_heads * size, width, bias=variant.output_bias)
        self.q_norm = nn.RMSNorm(size, config.rms_norm_eps) if variant.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(size, config.rms_norm_eps) if variant.qk_norm else nn.Identity()

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None, cache: Cache | None) -> Tensor:
        """(B, T, C) -> (B, T, C); `mask` is added to the scores, None is causal."""
        heads = (*x.shape[:2], -1, self.head_dim)
        values = self.v_proj(x).view(heads).transpose(1, 2)
        queries = rotate(self.q_norm(self.q_proj(x).view(heads).float()).transpose(1, 2), *rotary).to(values.dtype)
        keys = rotate(self.k_norm(self.k_proj(x).view(heads).float()).transpose(1, 2), *rotary).to(values.dtype)
        if cache is not None:
            keys, values = cache.append(self.layer, keys, values)
        return self.o_proj(attend(queries, keys, values, mask).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))` (arXiv:2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        bias = config.variant.mlp_bias
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention, then feed-forward, each on the normalised stream and added to it."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None, cache: Cache | None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        x = x + self.self_attn(self.input_layernorm(x), rotary, mask, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding, layers and the last norm: what Qwen3's names call `model`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        unfilled = torch.empty(config.vocab_size, config.hidden_size)  # filling it on "meta" takes seconds of imports
        self.embed_tokens = nn.Embedding.from_pretrained(unfilled, freeze=False)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)


class ChatModel(nn.Module):
    """Token ids in, logits of the next token out."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if torch.get_default_device().type != "meta":  # where it would take as long
            self.make_rotations(FIRST_POSITIONS)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        cache: Cache | None = None,
        *,
        last_only: bool = False,
    ) -> Tensor:
        """(B, T) ids -> (B, T, V) logits, or (B, 1, V) of the last position.

        `positions` (B, T), all below S, count from the cache's length unless given. `mask` (B, 1, T, S) is true where a
        position may look; without it each sees itself and all that is before. `cache` is read and lengthened.
        """
        past, time = (cache.length if cache else 0), ids.shape[1]
        window = self.config.variant.sliding_window or past + time
        if positions is None:
            positions = torch.arange(past, past + time, device=ids.device)[None]
        if mask is None and (past or window < time):
            mask = torch.ones(time, past + time, dtype=torch.bool, device=ids.device).tril(past)
        if window < past + time:
            mask = mask.triu(past - window + 1)
        if len(self.cos) < min(past + time, self.config.max_position_embeddings):
            self.make_rotations(max(past + time, 2 * len(self.cos)))
            self.to(ids.device)
        x = self.model.embed_tokens(ids)
        rotary = self.cos[positions][:, None], self.sin[positions][:, None]  # (B, 1, T, D/2)
        for layer in self.model.layers:
            x = layer(x, rotary, mask, cache)
        x = self.model.norm(x[:, -1:] if last_only else x)
        return F.linear(x, self.model.embed_tokens.weight if self.config.tie_word_embeddings else self.lm_head.weight)

    def new_cache(self, batch: int, length: int) -> Cache:
        """An empty cache for `length` tokens of each of `batch` sequences."""
        return Cache(self.config, batch, length, self.model.embed_tokens.weight)

    def make_rotations(self, length: int) -> None:
        """Tabulate the cosines and sines (length, D/2) of the first positions, up to the whole context."""
        config = self.config
        frequencies = config.rope_theta ** (-torch.arange(0, config.head_dim, 2) / config.head_dim)
        if config.variant.rope_scaling:
            frequencies = config.variant.rope_scaling.slowed(frequencies)
        angles = torch.arange(min(length, config.max_position_embeddings))[:, None] * frequencies
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(B, H, T, D) -> (B, H, T, D): rotary positions; channel i is paired with i + D/2 (arXiv:2104.09864)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


@torch.no_grad()
def initialise(model: ChatModel, seed: int) -> None:
    """Fill the weights for training: each layer begins as the identity, as what it adds begins at zero."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            weight.fill_(1.0)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()
        else:
            weight.normal_(std=0.02 if "embed" in name else weight.shape[1] ** -0.5, generator=generator)


def load_model(folder: Path) -> tuple[ChatModel, dict[str, Any]]:
    """The model in a Hugging Face folder, and its config.json. Raises ValueError where it is damaged or no Qwen3."""
    check_manifest(folder)
    file = folder / "config.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        config = ModelConfig.from_json(content)
    except ValueError as error:
        raise ValueError(f"{file}: not the shape of a model: {error}") from error
    model, weights = ChatModel(config), folder / "model.safetensors"
    try:
        model.load_state_dict(load_file(weights))
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{weights}: not the weights of {file}: {' '.join(str(error).split())}") from error
    return model.eval(), content
