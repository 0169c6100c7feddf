"""Convert a model to GGUF, for llama.cpp and ollama."""

import argparse
from pathlib import Path
from typing import get_args

from chatmill.app import arguments
from chatmill.gguf_export.fields import Quantization
from chatmill.gguf_export.gguf_files import export_gguf

EPILOG = """examples:
  chatmill gguf data/model exported/gguf --quantize q8_0
  chatmill gguf ~/models/SmolLM2-135M-Instruct ~/models/smollm-gguf --quantize q8_0 q4_0
  llama-cli -m exported/gguf/model-q8_0.gguf
  ollama create my-model -f exported/gguf/Modelfile

OUT gets model-f32.gguf, a file for each quantization, and the Modelfile for
ollama. A model whose tokenizer or shape llama.cpp does not have is refused
with the reason, and with a text to which it would give other tokens if one
is found.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    add, types = command.add_argument, get_args(Quantization)
    model = "a folder of the pipeline, or of Hugging Face with a Llama, Mistral, Qwen2 or Qwen3, and its tokenizer"
    add("model", type=Path, metavar="MODEL", help=model)
    add("out", type=Path, metavar="OUT", help="new folder to write the files into")
    more = f"also write {', '.join(types)}: 16, 8.5 and 4.5 bits for each weight of a matrix"
    add("--quantize", nargs="+", choices=types, default=[], metavar="TYPE", help=more)


def run(options: argparse.Namespace) -> None:
    arguments.check_model_folder(options.model)
    with arguments.new_output(options.out) as place:
        files = export_gguf(options.model, place, options.quantize)
        sizes = [file.stat().st_size for file in files]
    for file, size in zip(files, sizes, strict=True):
        print(f"{options.out / file.name}: {size / 1e6:,.1f} MB")
