"""Export the chat model to ONNX, with its key-value cache."""

import json
import shutil
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError
from safetensors.numpy import load_file

from chatmill import manifest, onnx_graph
from chatmill.engines.engine import ONNX_FILES
from chatmill.stage import Output, stage

WEIGHTS = "model.safetensors"
BITS: dict[str, onnx_graph.Bits] = {"int8": 8, "int4": 4}


def read_model(folder: Path) -> tuple[onnx_graph.Weights, dict[str, Any]]:
    """The weights of a model folder and its config.json. Raises ValueError where train_model did not write it."""
    manifest.check_manifest(folder)
    config_file, weights_file = folder / "config.json", folder / WEIGHTS
    config = json.loads(config_file.read_text(encoding="utf-8"))
    if "chatmill" not in config:
        raise ValueError(f"{config_file}: expected a model that train_model wrote")
    try:
        return load_file(weights_file), config
    except SafetensorError as error:
        raise ValueError(f"{weights_file}: not a safetensors file: {error}") from error


def copy_others(model: Path, folder: Path) -> None:
    """Copy what a chat needs beside the weights: configuration and tokenizer."""
    for file in model.iterdir():
        if file.name not in (WEIGHTS, manifest.NAME):
            shutil.copyfile(file, folder / file.name)


@stage
def main(model: Path, export: Output, *, quantize: list[Literal["int8", "int4"]]) -> None:
    """Write the portable graph, the one that chats, its quantized variants, and all that chatting needs beside them."""
    weights, config = read_model(model)
    metadata = {key: config["chatmill"][key] for key in ("fingerprint", "template")}
    export.mkdir()
    copy_others(model, export)
    graphs = {"onnx": None} | {f"onnx_{name}": BITS[name] for name in quantize}
    for engine, bits in graphs.items():
        onnx_graph.write(onnx_graph.shared(weights, config, metadata, bits), export / ONNX_FILES[engine])
    onnx_graph.write(onnx_graph.portable(weights, config, metadata), export / ONNX_FILES["onnx_hf"])
    manifest.write_manifest(export, kind="onnx", fingerprint=metadata["fingerprint"])
