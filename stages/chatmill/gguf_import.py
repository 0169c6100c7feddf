"""The shape and the weights of a model in a GGUF file."""

from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH, get_tensor_name_map
from torch import Tensor

from chatmill.checkpoints.configuration import COMMON, ModelConfig, UnsupportedArchitecture, read_config
from chatmill.checkpoints.weights import Weights
from chatmill.tokenizer.formats.gguf_files import GGUFFile

# The shape of a model, from the fields and tensors of a GGUF file: what gguf_export.hyperparameters writes.

ARCHITECTURES = ("llama", "qwen2", "qwen3")
NAMES = {  # of config.json, by the fields after the architecture's name
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "expert_count": "num_experts",
}
EMBEDDING, HEAD, ROPE_FREQUENCIES = "token_embd.weight", "output.weight", "rope_freqs.weight"
LLAMA3_FACTORS = (1.0, 4.0)  # low_freq_factor, high_freq_factor
TOLERANCE = 1e-3  # relative, of the frequencies of rotation


def architecture(fields: dict[str, Any]) -> str:
    """The name of the architecture. Raises UnsupportedArchitecture where it is none of ARCHITECTURES."""
    name = fields.get("general.architecture")
    if name not in ARCHITECTURES:
        expected = f"expected one of {', '.join(ARCHITECTURES)}: llama.cpp may run it"
        raise UnsupportedArchitecture(f"architecture {name!r:.80}: {expected}")
    return str(name)


def read_shape(content: GGUFFile) -> ModelConfig:
    """The shape. Raises UnsupportedArchitecture where our model cannot represent it, and ValueError for a wrong one."""
    arch, fields = architecture(content.fields), content.fields
    given = {name: fields.get(f"{arch}.{field}") for field, name in NAMES.items()}
    config: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if EMBEDDING not in content.places:
        raise ValueError(f"it has no {EMBEDDING}")
    config |= {
        "model_type": arch,
        "vocab_size": content.places[EMBEDDING].shape[0],
        "tie_word_embeddings": HEAD not in content.places,
        "attention_bias": arch == "llama" and "blk.0.attn_q.bias" in content.places,
        "mlp_bias": "blk.0.ffn_up.bias" in content.places,
    }
    rotated = fields.get(f"{arch}.rope.dimension_count")
    kind = fields.get(f"{arch}.rope.scaling.type", "none")
    if kind == "linear":
        config["rope_scaling"] = {"rope_type": "linear", "factor": fields.get(f"{arch}.rope.scaling.factor")}
    elif kind != "none":
        raise UnsupportedArchitecture(f"rope scaling {kind!r:.80}: only linear is supported")
    if ROPE_FREQUENCIES in content.places:
        config["rope_scaling"] = _llama3_scaling(content, float(config.get("rope_theta", COMMON["rope_theta"])))
    shape = read_config(config)
    if shape.num_hidden_layers > len(content.places):
        raise ValueError(f"{shape.num_hidden_layers:,} layers, but {len(content.places)} tensors")
    if rotated not in (None, shape.head_dim):
        raise UnsupportedArchitecture(f"rope over {rotated!r:.40} of {shape.head_dim} channels: only all are supported")
    return shape


def _llama3_scaling(content: GGUFFile, theta: float) -> dict[str, Any]:
    """Llama 3's rope scaling, which a file has as a divisor for each pair of channels.

    Its factors of low and high frequencies are those of all published models; the original context follows from them.
    """
    divisors = content.tensor(ROPE_FREQUENCIES).astype(np.float64)
    factor, (low, high) = divisors.max(), LLAMA3_FACTORS
    turns = theta ** (-np.arange(len(divisors)) / len(divisors)) / (2 * np.pi)  # of each pair, per position
    kept = (1 / divisors - 1 / factor) / max(1 - 1 / factor, TOLERANCE)  # share of the frequency
    between = (kept > TOLERANCE) & (kept < 1 - TOLERANCE)
    context = np.round(np.median((low + (high - low) * kept[between]) / turns[between])) if between.any() else 1.0
    expected = np.clip((context * turns - low) / (high - low), 0, 1)
    if not np.allclose((1 - expected) / factor + expected, 1 / divisors, rtol=TOLERANCE):
        raise UnsupportedArchitecture(f"{ROPE_FREQUENCIES} is not as Llama 3 has it: only that is supported")
    factors = {"factor": float(factor), "low_freq_factor": low, "high_freq_factor": high}
    return {"rope_type": "llama3", "original_max_position_embeddings": int(context), **factors}


# The weights in a GGUF file under Hugging Face's names, with the rows of queries and keys in its order.


def read_tensors(content: GGUFFile, config: ModelConfig, names: list[str]) -> Weights:
    """The tensors under `names`, which are our model's; one that it does not have keeps its name in the file.

    Quantized ones become float32.
    """
    arch = MODEL_ARCH[architecture(content.fields).upper()]
    known = get_tensor_name_map(arch, config.num_hidden_layers)
    our_names = {known.get_name(name, try_suffixes=(".weight", ".bias")): name for name in names}
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    weights: Weights = {}
    for name in content.places:
        if name != ROPE_FREQUENCIES:
            our_name = our_names.get(name) or name
            rotated = heads.get(our_name.split(".")[-2], 0) if arch == MODEL_ARCH.LLAMA and our_name != name else 0
            weights[our_name] = _in_halves(torch.from_numpy(content.tensor(name)), rotated)
    return weights


def _in_halves(weight: Tensor, heads: int) -> Tensor:
    """Rows (H * D/2 * 2, C) -> (H * 2 * D/2, C) of queries or keys, of which llama.cpp rotates neighbours as a pair."""
    if not heads or weight.shape[0] % (2 * heads):
        return weight
    return weight.reshape(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
