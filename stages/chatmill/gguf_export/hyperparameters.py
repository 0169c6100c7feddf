"""The shape of a model in the fields of a GGUF file: of the architectures qwen3, qwen2 and llama of llama.cpp."""

from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGUFWriter, RopeScalingType

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.gguf_export.unsupported import UnsupportedModel

REMEDY = "transformers reads the model's folder"


def architecture(config: ModelConfig) -> MODEL_ARCH:
    """The architecture of llama.cpp that a shape belongs to. Raises UnsupportedModel where it has none."""
    variant = config.variant
    if config.chunking or config.byte_head:
        reason = "llama.cpp has neither chunks of tokens, nor a head that spells"
        raise UnsupportedModel(reason, remedy="`chatmill chat` runs the model's folder")
    if not (variant.qk_norm or variant.qkv_bias != variant.output_bias):
        return MODEL_ARCH.LLAMA
    arch = MODEL_ARCH.QWEN3 if variant.qk_norm else MODEL_ARCH.QWEN2
    name = MODEL_ARCH_NAMES[arch]
    if variant.output_bias or variant.mlp_bias:
        raise UnsupportedModel(f"{name} has no biases after attention in llama.cpp", remedy=REMEDY)
    if variant.rope_scaling and variant.rope_scaling.original_max_position_embeddings:
        raise UnsupportedModel(f"{name} has no rope_type llama3 in llama.cpp", remedy=REMEDY)
    if arch == MODEL_ARCH.QWEN2 and config.num_attention_heads * config.head_dim != config.hidden_size:
        reason = f"in llama.cpp, head_dim of {name} is hidden_size / num_attention_heads, and here {config.head_dim}"
        raise UnsupportedModel(reason, remedy=REMEDY)
    return arch


def add_hyperparameters(writer: GGUFWriter, config: ModelConfig) -> None:
    """Add the shape; llama.cpp sees all earlier tokens, so that a context ends with the sliding window."""
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.variant.sliding_window or config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    scaling = config.variant.rope_scaling
    if scaling and not scaling.original_max_position_embeddings:  # that of Llama 3 is a tensor
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling.factor)
    writer.add_vocab_size(config.vocab_size)
