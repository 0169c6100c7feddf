"""Export the chat model to GGUF, for llama.cpp and ollama."""

from pathlib import Path

from chatmill.gguf_export.fields import Quantization, UnsupportedModel
from chatmill.gguf_export.gguf_files import export_gguf, finish_folder
from chatmill.pipeline.manifest import check_manifest
from chatmill.pipeline.signatures import Output
from chatmill.pipeline.stage import stage


def skip_export(model: Path, export: Path, problem: UnsupportedModel) -> None:
    """Write the reason why there are no files."""
    example = {} if problem.example is None else {"example": problem.example}
    export.mkdir()
    finish_folder(export, {"reason": problem.reason} | example, check_manifest(model) or "")


@stage
def main(model: Path, export: Output, *, quantize: list[Quantization]) -> None:
    """Write the model in float32 and quantized, and ollama's Modelfile; or the reason why GGUF cannot express it."""
    try:
        export_gguf(model, export, quantize)
    except UnsupportedModel as problem:
        skip_export(model, export, problem)
