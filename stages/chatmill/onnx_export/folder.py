"""The folder of the export: which graph each engine has, and the files beside the graphs."""

import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from onnx import ModelProto
from safetensors import SafetensorError
from safetensors.numpy import load_file

from chatmill.engines.engine import ONNX_FILES
from chatmill.onnx_export import graphs
from chatmill.onnx_export.decoder_graph import NumpyWeights
from chatmill.pipeline import manifest

Build = Callable[[NumpyWeights, Mapping[str, Any], Mapping[str, str]], ModelProto]

WEIGHTS = "model.safetensors"
BUILDS: dict[str, Build] = {  # the graph of each engine
    "onnx": graphs.shared,
    "onnx_hf": graphs.portable,
    "onnx_int8": partial(graphs.shared, bits=8),
    "onnx_int8_dynamic": graphs.dynamic,
    "onnx_int4": partial(graphs.shared, bits=4),
}
PORTABLE: dict[str, tuple[str, Build]] = {  # quantized portable graphs: transformers.js knows their files by dtype
    "int8": ("model_quantized.onnx", partial(graphs.portable, bits=8)),  # dtype q8
    "int8_dynamic": ("model_int8.onnx", graphs.portable_dynamic),  # dtype int8
    "int4": ("model_q4.onnx", partial(graphs.portable, bits=4)),  # dtype q4
}
TRANSFORMERS_JS = {"transformers.js_config": {"dtype": "fp32"}}  # in browsers its default is q8


def read_model_folder(folder: Path) -> tuple[NumpyWeights, dict[str, Any]]:
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


def write_config_and_tokenizer(model: Path, config: dict[str, Any], folder: Path) -> None:
    """Write the configuration and the tokenizer, which a chat needs beside the weights."""
    ignore = shutil.ignore_patterns("*.safetensors", manifest.MANIFEST_NAME)
    shutil.copytree(model, folder, ignore=ignore, copy_function=shutil.copyfile, dirs_exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | TRANSFORMERS_JS, indent=1) + "\n", encoding="utf-8")


def skip_export(export: Path, config: dict[str, Any]) -> None:
    """Write the reason why there is no graph."""
    reason = "a graph has neither chunks of tokens, whose number the text decides, nor a head that spells"
    parts = [name for name in ("chunking", "byte_head") if name in config]
    export.mkdir()
    content = {engine: {"reason": f"{', '.join(parts)}: {reason}"} for engine in ONNX_FILES}
    (export / "formats.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    manifest.write_manifest(export, kind="onnx", fingerprint=config["chatmill"]["fingerprint"])


def write_genai(folder: Path, config: dict[str, Any]) -> None:
    """Write the files of ONNX Runtime GenAI: settings, and a small graph with the weights of the `shared` one."""
    graphs.write(graphs.graph(folder / ONNX_FILES["onnx"]), folder / graphs.GRAPH_FILE)
    generation = folder / "generation_config.json"  # it has the ends of answers and of calls
    ends = json.loads(generation.read_text(encoding="utf-8")) if generation.exists() else {}
    settings = graphs.settings(config | ends)
    (folder / graphs.CONFIG_FILE).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
