"""The shape of a model: that of Qwen3, of the families that are variants of it, and of what no other library has."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

_LONGEST_NGRAM = 32  # tokens


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
class Chunking:
    """How the inner layers work on chunks of tokens, and the outer ones, as many before as after them, on all."""

    boundaries: Literal["learned", "autoencoder", "fixed"] = "learned"
    rate: float = 4.0  # tokens of a chunk, on average
    weight: float = 1.0  # of the penalty for another average
    surprise: float = 0.3  # learned: of the pull of boundaries to tokens that were hard to foretell
    reconstruction: float = 0.3  # autoencoder: of the cost of reading chunks back
    ngrams: tuple[int, ...] = (2, 3, 4, 6)  # tokens of the stretches that have rows of their own
    slots: int = 8192  # rows that stretches share
    layers: int = 1  # outer layers before the chunks, and as many after them
    width: int = 96  # channels of the outer layers
    window: int = 32  # tokens that the outer layers see: their own and those before it

    def __post_init__(self) -> None:
        if self.rate <= 1:
            raise ValueError(f"chunking.rate = {self.rate}: a chunk needs more than one token on average, as 4")
        if not self.ngrams or not 1 <= min(self.ngrams) <= max(self.ngrams) <= _LONGEST_NGRAM:
            raise ValueError(f"chunking.ngrams = {self.ngrams}: expected lengths from 1 to {_LONGEST_NGRAM} tokens")
        if self.slots < 1:
            raise ValueError(f"chunking.slots = {self.slots}: stretches of tokens need a row")
        if self.width % 2:
            raise ValueError(f"chunking.width = {self.width} is odd: the outer layers need an even number of channels")

    def outer_config(self, config: "ModelConfig") -> "ModelConfig":
        """The shape of the outer layers; rotary positions are the model's."""
        heads = max(1, self.width // config.head_dim)
        return replace(
            config,
            hidden_size=self.width,
            intermediate_size=64 * max(1, round(self.width / 24)),
            num_hidden_layers=2 * self.layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            chunking=None,
        )

    def router_states_config(self, config: "ModelConfig") -> "ModelConfig":
        """The shape of a cache that keeps two vectors of each token."""
        outer = self.outer_config(config)
        return replace(outer, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=self.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteHeadShape:
    """The shape of the head that spells each token, byte by byte, and what its symbols are."""

    width: int = 128  # channels of what comes before a byte
    features: int = 256  # in which that meets the hidden state
    slots: int = 8192  # rows that stretches of bytes share
    ends: int = 1  # end marks, as many as tokens have the same bytes
    controls: int = 0  # tokens without bytes
    longest: int = 2  # symbols of a token, the end mark too

    @property
    def symbols(self) -> int:
        """The bytes, the end marks and the tokens without bytes."""
        return 256 + self.ends + self.controls

    def config(self) -> "ModelConfig":
        """The shape of the layer that reads what comes before a byte."""
        return ModelConfig.from_depth(1, vocab_size=self.symbols, context=self.longest, width=self.width)


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
    chunking: Chunking | None = None
    byte_head: ByteHeadShape | None = None

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

    def to_json(self) -> dict[str, Any]:
        """What a Qwen3 config.json says of the shape."""
        assert self == replace(self, variant=Variant(), chunking=None, byte_head=None), "only a Qwen3 is written"
        shape = asdict(self)
        del shape["variant"], shape["chunking"], shape["byte_head"]
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "dtype": "float32",
            "hidden_act": "silu",
            "attention_bias": False,
            **shape,
        }
