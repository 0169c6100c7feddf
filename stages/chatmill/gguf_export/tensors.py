"""The weights in a GGUF file: their names, the order of their rows, and their types.

Shapes: N rows, C columns, H heads, D channels of a head.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map, quants
from numpy.typing import NDArray
from torch import Tensor

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.checkpoints.weights import Weights, first_few
from chatmill.gguf_export.file_types import FileType
from chatmill.model.chat_model import scale_rope_frequencies
from chatmill.pipeline.progress import log

ROPE_FREQUENCIES = "rope_freqs.weight"


class GGUFTensor(NamedTuple):
    """A tensor by its GGUF name; `heads` is 0, or the number of heads whose rows llama.cpp rotates in pairs."""

    name: str
    weight: Tensor  # (N, C) or (N,), memory-mapped
    heads: int = 0

    def type(self, file_type: FileType) -> GGMLQuantizationType:
        """The type in a file: float32 for vectors, float16 for rows that no number of blocks fills."""
        kind = GGMLQuantizationType[file_type.upper()]
        if self.weight.ndim == 1:
            return GGMLQuantizationType.F32
        block, _ = GGML_QUANT_SIZES[kind]
        return GGMLQuantizationType.F16 if self.weight.shape[-1] % block else kind

    def content(self) -> NDArray[np.float32]:
        """The numbers, in the order of llama.cpp: (H * 2 * D/2, C) -> (H * D/2 * 2, C) where it rotates pairs."""
        values: NDArray[np.float32] = self.weight.to(torch.float32).numpy()
        if not self.heads:
            return values
        halves = values.reshape(self.heads, 2, -1, *values.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def gguf_tensors(config: ModelConfig, arch: MODEL_ARCH, weights: Weights) -> Iterator[GGUFTensor]:
    """The tensors of a model, by the names of Hugging Face, for an architecture of llama.cpp."""
    names = get_tensor_name_map(arch, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in weights.items():
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, f"{name}: no tensor of these families"
        yield GGUFTensor(gguf_name, weight, heads.get(name.split(".")[-2], 0) if arch == MODEL_ARCH.LLAMA else 0)
    scaling = config.variant.rope_scaling
    if scaling and scaling.original_max_position_embeddings:
        frequencies = config.rope_theta ** (-torch.arange(0, config.head_dim, 2) / config.head_dim)
        yield GGUFTensor(ROPE_FREQUENCIES, frequencies / scale_rope_frequencies(frequencies, scaling))


def write_tensors(writer: GGUFWriter, tensors: list[GGUFTensor], file_type: FileType) -> None:
    """Write the file: its fields, the list of tensors, and the tensors one after another."""
    for tensor in tensors:
        kind, shape = tensor.type(file_type), tuple(tensor.weight.shape)
        is_blocks = kind.name.startswith("Q")
        stored = quants.quant_shape_to_byte_shape(shape, kind) if is_blocks else shape
        dtype = np.dtype(np.uint8 if is_blocks else kind.name.replace("F", "float"))
        writer.add_tensor_info(tensor.name, stored, dtype, math.prod(stored) * dtype.itemsize, raw_dtype=kind)
    other = [t.name for t in tensors if t.weight.ndim > 1 and t.type(file_type).name.lower() != file_type]
    if other:
        log("export_gguf", f"{file_type}: {len(other)} matrices are f16, whose rows are no blocks: {first_few(other)}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(quants.quantize(tensor.content(), tensor.type(file_type)))
