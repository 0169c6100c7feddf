"""Export the chat model to ONNX, with its key-value cache."""

from pathlib import Path
from typing import Literal

from chatmill.onnx_export.graphs import (
    is_large,
    read_model_folder,
    write_config_and_tokenizer,
    write_genai,
    write_graphs,
)
from chatmill.pipeline import manifest
from chatmill.pipeline.signatures import Output
from chatmill.pipeline.stage import stage


@stage
def main(model: Path, export: Output, *, quantize: list[Literal["int8", "int8_dynamic", "int4"]]) -> None:
    """Write the portable and the shared graph, quantized variants, and the files that a chat needs beside them."""
    weights, config = read_model_folder(model)
    metadata = {key: config["chatmill"][key] for key in ("fingerprint", "template")}
    export.mkdir()
    write_config_and_tokenizer(model, config, export, has_weights_file=is_large(weights))
    for precision in ["float32", *quantize]:
        write_graphs(precision, weights, config, metadata, export)
    write_genai(export, config)
    manifest.write_manifest(export, kind="onnx", fingerprint=metadata["fingerprint"])
