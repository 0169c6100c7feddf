"""The shape of a model: of Qwen3, of the families that are variants of it, and of our own architecture."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

_LONGEST_NGRAM = 32  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Rotary frequencies divided by `factor`, for a longer context than the model was first trained with.

    As in Llama 3, frequencies that turn fewer than `low_freq_factor` times within the original context are scaled,
    those that turn more than `high_freq_factor` times are not, and those between are interpolated. With an original
    context of 0, all are scaled.
    """

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The differences between families of models. The defaults are Qwen3's."""

    qk_norm: bool = True  # queries and keys are normalised
    qkv_bias: bool = False  # of queries, keys and values
    output_bias: bool = False  # of attention's output projection
    mlp_bias: bool = False
    rope_scaling: RopeScaling | None = None
    sliding_window: int | None = None  # positions that each one sees: itself and those before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunking:
    """Inner layers work on chunks of tokens; outer layers, as many before as after them, work on all tokens."""

    boundaries: Literal["learned", "autoencoder", "fixed"] = "learned"
    rate: float = 4.0  # tokens of a chunk, on average
    weight: float = 1.0  # of the loss that holds the average at `rate`
    surprise: float = 0.3  # learned: weight of the loss that draws boundaries to tokens that are hard to predict
    reconstruction: float = 0.3  # autoencoder: weight of the cost of reconstructing chunks
    ngrams: tuple[int, ...] = (2, 3, 4, 6)  # lengths of the token n-grams that have embeddings
    slots: int = 8192  # rows that n-grams of tokens share
    layers: int = 1  # outer layers before the chunks, and as many after them
    width: int = 96  # channels of the outer layers
    window: int = 32  # tokens that the outer layers see: their own and those before it

    def __post_init__(self) -> None:
        if self.rate <= 1:
            raise ValueError(f"chunking.rate = {self.rate}: expected more than 1 token per chunk, such as 4")
        if not self.ngrams or not 1 <= min(self.ngrams) <= max(self.ngrams) <= _LONGEST_NGRAM:
            raise ValueError(f"chunking.ngrams = {self.ngrams}: expected lengths from 1 to {_LONGEST_NGRAM} tokens")
        if self.slots < 1:
            raise ValueError(f"chunking.slots = {self.slots}: expected 1 row or more for n-grams")
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
        """The shape of a KVCache for the two vectors that the router stores of each token."""
        outer = self.outer_config(config)
        return replace(outer, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=self.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteHeadShape:
    """The shape and the symbols of the head that spells tokens byte by byte."""

    width: int = 128  # channels of a prefix
    features: int = 256  # channels of the gated layer that combines prefix and hidden state
    slots: int = 8192  # rows that n-grams of bytes share
    ends: int = 1  # end marks: the most tokens that have the same bytes
    controls: int = 0  # tokens without bytes
    longest: int = 2  # symbols of the longest token, with its end mark

    @property
    def symbols(self) -> int:
        """The number of bytes, end marks and tokens without bytes."""
        return 256 + self.ends + self.controls

    def config(self) -> "ModelConfig":
        """The shape of the layer that reads a prefix."""
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
        """The shape for a depth: 64 channels and one head per layer, so that 12 layers are as large as GPT-2 small."""
        width = width or 64 * depth
        heads = heads or -(-width // 64)
        if width % (2 * heads):
            raise ValueError(f"width = {width} and heads = {heads}: expected an even number of channels for each head")
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
        """The shape as a Qwen3 config.json."""
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
