"""The weights in a GGUF file under Hugging Face's names, and in their order."""

from gguf import MODEL_ARCH, get_tensor_name_map
from torch import Tensor

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.checkpoints.weights import Weights
from chatmill.gguf_import.gguf_file import GGUFFile
from chatmill.gguf_import.shape import ROPE_FREQUENCIES, architecture


def read_tensors(content: GGUFFile, config: ModelConfig, names: list[str]) -> Weights:
    """The tensors by `names`, those of our model; others keep the name that they have in the file.

    Quantized ones become float32.
    """
    arch = MODEL_ARCH[architecture(content.fields).upper()]
    known = get_tensor_name_map(arch, config.num_hidden_layers)
    ours = {known.get_name(name, try_suffixes=(".weight", ".bias")): name for name in names}
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    weights: Weights = {}
    for name in content.places:
        if name != ROPE_FREQUENCIES:
            own = ours.get(name) or name
            rotated = heads.get(own.split(".")[-2], 0) if arch == MODEL_ARCH.LLAMA and own != name else 0
            weights[own] = _in_halves(content.tensor(name), rotated)
    return weights


def _in_halves(weight: Tensor, heads: int) -> Tensor:
    """Rows (H * D/2 * 2, C) -> (H * 2 * D/2, C) of queries or keys, of which llama.cpp rotates neighbours as a pair."""
    if not heads or weight.shape[0] % (2 * heads):
        return weight
    return weight.reshape(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
