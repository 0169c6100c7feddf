"""Write a page that is one file: a model, and all that a browser needs to chat with it."""

import argparse
from pathlib import Path

from chatmill.app.named_models import MODEL_FOLDERS, fetch_model
from chatmill.pipeline.outputs import atomic_output, explain_full_disk

EXAMPLES = """examples:
  chatmill page --model data/export/onnx -o chat.html
  chatmill page --model ~/models/SmolLM2-135M-Instruct -o smollm.html --name SmolLM2

The page opens from disk, or from any static host, and connects to nothing. Its
weights are int8. A model that is larger than browsers open, or of another shape
than Llama, Mistral, Qwen2 and Qwen3, is refused with the reason.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.formatter_class, command.epilog = argparse.RawDescriptionHelpFormatter, EXAMPLES
    add = command.add_argument
    add("--model", default="data/export/onnx", help="folder of a model, or an experiment (default: %(default)s)")
    add("-o", "--output", type=Path, required=True, metavar="FILE", help="the page to write; an older one is replaced")
    add("--name", help="the model's name on the page (default: that of its folder, or chatmill)")


def run(options: argparse.Namespace) -> None:
    """Write the page, and print its size."""
    from chatmill.app.page.builder import build_page  # slow to import

    if options.output.is_dir():
        raise ValueError(f"{options.output}: is a folder: name a file, such as chat.html")
    if not options.output.absolute().parent.is_dir():
        raise ValueError(f"{options.output.parent}: no such folder")
    with fetch_model(options.model) as model:
        own = Path(options.model) in MODEL_FOLDERS
        name = options.name or ("chatmill" if own else Path(options.model).absolute().name)
        page = build_page(model, name)
    with atomic_output(options.output) as place, explain_full_disk([options.output]):
        place.write_bytes(page)
    print(f"{options.output}: {len(page) / 1e6:,.1f} MB")
