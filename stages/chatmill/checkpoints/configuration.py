"""The shape of a model: of Qwen3, and of the families that are variants of it."""

from dataclasses import asdict, dataclass
from typing import Any


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


# From config.json to the shape, and back: the architectures of Hugging Face that are variants of our model.

REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
SIZES = (*REQUIRED, "max_position_embeddings", "num_key_value_heads", "head_dim")
DEFAULTS: dict[str, dict[str, Any]] = {  # of each family, for fields that a config.json leaves out
    "llama": {"max_position_embeddings": 2048},
    "mistral": {"max_position_embeddings": 4096 * 32, "num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "sliding_window": 4096},
    "qwen3": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "sliding_window": 4096, "head_dim": 128},
}
COMMON = {"rope_theta": 10000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "hidden_act": "silu"}
CLASSES = {f"{family.title()}{kind}" for family in DEFAULTS for kind in ("ForCausalLM", "Model")}
MOST = (1 << 31) - 1  # the largest size that a config.json may have


class UnsupportedArchitecture(ValueError):
    """A model that ours cannot represent, but another library may."""


def read_config(content: dict[str, Any]) -> ModelConfig:
    """The shape that a config.json describes.

    Raises UnsupportedArchitecture, which names field and value, for a model that ours cannot represent, and ValueError
    for an invalid config.json.
    """
    family = content.get("model_type")
    if not isinstance(family, str) or family not in DEFAULTS:
        raise UnsupportedArchitecture(f"model_type {family!r:.80}: expected one of {', '.join(DEFAULTS)}")
    values = COMMON | DEFAULTS[family] | content
    _check_supported(values)
    if missing := [name for name in REQUIRED if values.get(name) is None]:
        raise ValueError(f"missing {', '.join(missing)}")
    heads = _positive_int(values, "num_attention_heads")
    derived = {"num_key_value_heads": heads, "head_dim": _positive_int(values, "hidden_size") // heads}
    values |= {name: size for name, size in derived.items() if values.get(name) is None}
    rope, has_bias = _rope(values), bool(values.get("attention_bias"))
    return ModelConfig(
        **{name: _positive_int(values, name) for name in SIZES},
        rope_theta=_positive_float(rope, "rope_theta"),
        rms_norm_eps=_positive_float(values, "rms_norm_eps"),
        tie_word_embeddings=bool(values["tie_word_embeddings"]),
        variant=Variant(
            qk_norm=family == "qwen3",
            qkv_bias=family == "qwen2" or (family != "mistral" and has_bias),
            output_bias=family in ("llama", "qwen3") and has_bias,
            mlp_bias=family == "llama" and bool(values.get("mlp_bias")),
            rope_scaling=_scaling(values, rope),
            sliding_window=_window(family, values),
        ),
    )


def to_hugging_face(config: ModelConfig) -> dict[str, Any]:
    """The config.json of the family that a shape belongs to; `read_config` inverts it.

    A Mistral without a sliding window is a Llama.
    """
    variant, shape = config.variant, asdict(config)
    if variant.qk_norm:
        family = "qwen3"
    elif variant.qkv_bias and not variant.output_bias:
        family = "qwen2"
    else:
        family = "mistral" if variant.sliding_window else "llama"
    del shape["variant"]
    content: dict[str, Any] = {
        "architectures": [f"{family.title()}ForCausalLM"],
        "model_type": family,
        "dtype": "float32",
        "hidden_act": "silu",
        "attention_bias": variant.output_bias,
        **shape,
    }
    if variant.mlp_bias:
        content["mlp_bias"] = True
    if variant.sliding_window:
        content["sliding_window"] = variant.sliding_window
        content |= {} if family == "mistral" else {"use_sliding_window": True, "max_window_layers": 0}
    if scaling := variant.rope_scaling:
        llama3 = {"rope_type": "llama3", **asdict(scaling)}
        plain = {"rope_type": "linear", "factor": scaling.factor}
        content["rope_scaling"] = llama3 if scaling.original_max_position_embeddings else plain
    return content


def _check_supported(values: dict[str, Any]) -> None:
    if values["hidden_act"] not in ("silu", "swish"):
        raise UnsupportedArchitecture(f"hidden_act {values['hidden_act']!r:.80}: only silu is supported")
    classes = values.get("architectures") or []
    if not isinstance(classes, list) or any(name not in CLASSES for name in map(str, classes)):
        raise UnsupportedArchitecture(f"architectures {classes!r:.80}: not supported")
    for name in ("quantization_config", "num_local_experts", "num_experts"):
        if values.get(name):
            raise UnsupportedArchitecture(f"{name} {values[name]!r:.80}: not supported")


def _rope(values: dict[str, Any]) -> dict[str, Any]:
    """The parameters of rotary positions, under older or newer names, with `rope_theta` and `rope_type`."""
    given = values.get("rope_scaling") or values.get("rope_parameters") or {}
    if not isinstance(given, dict) or any(isinstance(value, dict) for value in given.values()):
        raise UnsupportedArchitecture(f"rope_parameters {given!r:.80}: only the same for all layers are supported")
    rope = {"rope_theta": values["rope_theta"], "rope_type": given.get("type", "default"), **given}
    factor = rope.get("partial_rotary_factor", values.get("partial_rotary_factor"))
    if factor not in (None, 1):
        raise UnsupportedArchitecture(f"partial_rotary_factor {factor!r:.80}: only 1 is supported")
    if rope["rope_type"] not in ("default", "linear", "llama3"):
        kind = f"rope_type {rope['rope_type']!r:.80}"
        raise UnsupportedArchitecture(f"{kind}: only default, linear and llama3 are supported")
    return rope


def _scaling(values: dict[str, Any], rope: dict[str, Any]) -> RopeScaling | None:
    if rope["rope_type"] == "default":
        return None
    factor = _positive_float(rope, "factor")
    if rope["rope_type"] == "linear":
        return RopeScaling(factor=factor)
    low, high = _positive_float(rope, "low_freq_factor"), _positive_float(rope, "high_freq_factor")
    if low >= high:
        raise ValueError(f"low_freq_factor {low} is not less than high_freq_factor {high}")
    name = "original_max_position_embeddings"
    context = values.get(name) or rope.get(name) or values["max_position_embeddings"]
    return RopeScaling(
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=_positive_int({name: context}, name),
    )


def _window(family: str, values: dict[str, Any]) -> int | None:
    """The sliding window of all layers; None if no layer has one, or it is no shorter than the context.

    In Qwen the last layers have it, unless `layer_types` lists them. Raises UnsupportedArchitecture if only some have.
    """
    windowed = family == "mistral" or (family != "llama" and values.get("use_sliding_window"))
    if not windowed or values.get("sliding_window") is None:
        return None
    window, layers = _positive_int(values, "sliding_window"), _positive_int(values, "num_hidden_layers")
    if family == "mistral":
        sliding = layers
    elif isinstance(types := values.get("layer_types"), list):
        sliding = types.count("sliding_attention")
    else:
        sliding = max(0, layers - _positive_int({"max_window_layers": 28} | values, "max_window_layers", least=0))
    if not sliding or window >= _positive_int(values, "max_position_embeddings"):
        return None
    if sliding != layers:
        raise UnsupportedArchitecture(f"sliding_window {window} in {sliding} layers: only all layers are supported")
    return window


def _positive_int(values: dict[str, Any], name: str, least: int = 1) -> int:
    value: Any = values.get(name)
    if type(value) is not int or not least <= value <= MOST:
        raise ValueError(f"{name} {value!r:.40}: expected a whole number from {least} to {MOST}")
    return value


def _positive_float(values: dict[str, Any], name: str) -> float:
    value: Any = values.get(name)
    if type(value) not in (int, float) or not 0 < value < 1e30:
        raise ValueError(f"{name} {value!r:.40}: expected a number above 0")
    return float(value)
