"""The files from which engines and their peers read one model."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

import export_gguf
import export_onnx
from chatmill.checkpoints.configuration import ModelConfig, to_hugging_face
from chatmill.conversation import IM_END
from chatmill.engines.engine import ONNX_FILES
from chatmill.pipeline.manifest import write_manifest
from chatmill.tokenizer.vocabulary.tokenizer_folder import write_folder
from support.tiny import VOCABULARY, random_model

SHAPES = {"30M": (8, 16384), "100M": (12, 32768)}  # layers and vocabulary
CONTEXT = 2048
QUANTIZED = [name.removeprefix("onnx_") for name in ONNX_FILES if name not in ("onnx", "onnx_hf")]


def write_all(model: str, folder: Path) -> None:
    """Write the files for our engines and the installed peers, of a folder of train_model or one of SHAPES."""
    folder.mkdir()
    if model in SHAPES:
        write_random_model(model, folder / "model")
    else:
        (folder / "model").symlink_to(Path(model).resolve())
    export_onnx.main(folder / "model", folder / "onnx", quantize=QUANTIZED)
    export_gguf.main(folder / "model", folder / "gguf", quantize=["q8_0", "q4_0"])
    if find_spec("ctranslate2") and find_spec("transformers"):
        from ctranslate2.converters import TransformersConverter

        TransformersConverter(str(folder / "model")).convert(folder / "ctranslate2")


def write_random_model(shape: str, folder: Path) -> None:
    """Write an untrained model of that size, as train_model writes one; its tokenizer has the first ids only."""
    layers, vocab_size = SHAPES[shape]
    config = ModelConfig.from_depth(layers, vocab_size=vocab_size, context=CONTEXT)
    write_folder(VOCABULARY, folder)
    save_file(random_model(config).state_dict(), folder / "model.safetensors")
    content = to_hugging_face(config) | {"chatmill": {"fingerprint": VOCABULARY.fingerprint, "template": "chatml"}}
    content["eos_token_id"] = VOCABULARY.special[IM_END]
    (folder / "config.json").write_text(json.dumps(content))
    write_manifest(folder, kind="model", fingerprint=VOCABULARY.fingerprint)


def read_config(folder: Path) -> dict[str, Any]:
    """The shape of a model."""
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))
