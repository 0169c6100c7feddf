"""What a GGUF file holds, by the reader of the package gguf; and llama.cpp, which runs it."""

from typing import NamedTuple

import gguf
import numpy as np
import pytest

TOKENIZER = "tokenizer.ggml."


class Content(NamedTuple):
    """The fields and tensors of a file, by name."""

    fields: dict
    tensors: dict[str, np.ndarray]  # as float32
    types: dict[str, str]  # of the tensors


def read(file):
    reader = gguf.GGUFReader(file)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    tensors = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        tensors[tensor.name] = values.reshape(tensor.shape[::-1].tolist())
    return Content(fields, tensors, types)


def open_in_llama_cpp(file, context=128):
    """The file in llama.cpp, with a float32 cache."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="pip install 'chatmill[peers]' to run files in llama.cpp")
    kind = llama_cpp.GGML_TYPE_F32
    return llama_cpp.Llama(
        str(file), n_ctx=context, n_threads=1, logits_all=True, type_k=kind, type_v=kind, verbose=False
    )


def logits_in_llama_cpp(model, ids):
    """(T, V) after each id."""
    model.reset()
    model.eval(ids)
    return model.scores[: len(ids)].copy()
