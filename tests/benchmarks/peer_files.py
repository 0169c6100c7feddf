"""The files from which engines and their peers read one model."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from safetensors.torch import save_file

import export_onnx
from chatmill.checkpoints.configuration import ModelConfig
from chatmill.engines.engine import ONNX_FILES
from chatmill.pipeline.manifest import write_manifest
from chatmill.tokenizer.vocabulary.tokenizer_folder import write_folder
from support.tiny import VOCABULARY, random_model

SHAPES = {"30M": (8, 16384), "100M": (12, 32768)}  # layers and vocabulary
CONTEXT = 2048
QUANTIZED = [name.removeprefix("onnx_") for name in ONNX_FILES if name not in ("onnx", "onnx_hf")]
GGUF_TYPES = {"f32": "F32", "q8_0": "Q8_0", "q4_0": "Q4_0"}  # of the matrices; all else stays float32


def write_all(model: str, folder: Path) -> None:
    """Write the files for our engines and the installed peers, of a folder of train_model or one of SHAPES."""
    folder.mkdir()
    if model in SHAPES:
        write_random_model(model, folder / "model")
    else:
        (folder / "model").symlink_to(Path(model).resolve())
    export_onnx.main(folder / "model", folder / "onnx", quantize=QUANTIZED)
    if find_spec("gguf"):
        config, weights = read_config(folder / "model"), load_file(folder / "model" / "model.safetensors")
        for name in GGUF_TYPES:
            write_gguf(weights, config, folder / f"{name}.gguf", name)
    if find_spec("ctranslate2") and find_spec("transformers"):
        from ctranslate2.converters import TransformersConverter

        TransformersConverter(str(folder / "model")).convert(folder / "ctranslate2")


def write_random_model(shape: str, folder: Path) -> None:
    """Write an untrained model of that size, as train_model writes one; its tokenizer has the first ids only."""
    layers, vocab_size = SHAPES[shape]
    config = ModelConfig.from_depth(layers, vocab_size=vocab_size, context=CONTEXT)
    write_folder(VOCABULARY, folder)
    save_file(random_model(config).state_dict(), folder / "model.safetensors")
    content = config.to_json() | {"chatmill": {"fingerprint": VOCABULARY.fingerprint, "template": "chatml"}}
    (folder / "config.json").write_text(json.dumps(content))
    write_manifest(folder, kind="model", fingerprint=VOCABULARY.fingerprint)


def read_config(folder: Path) -> dict[str, Any]:
    """The shape of a model."""
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def write_gguf(weights: dict[str, np.ndarray], config: dict[str, Any], file: Path, kind: str) -> None:
    """Write a Qwen3 without a vocabulary, for use by ids."""
    import gguf  # of a peer

    writer = gguf.GGUFWriter(file, "qwen3")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config["vocab_size"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    for name, weight in weights.items():
        target = gguf.GGMLQuantizationType[GGUF_TYPES[kind] if weight.ndim == 2 else "F32"]
        content = gguf.quants.quantize(weight, target)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), content, raw_dtype=target)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
