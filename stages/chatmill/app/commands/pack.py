"""Pack a model for others: one folder for all runtimes, with a model card and checksums."""

import argparse
import shutil
from pathlib import Path

from chatmill.pipeline.outputs import atomic_output, explain_full_disk

EXAMPLES = """examples:
  chatmill pack packed
  chatmill pack packed --name parcel-helper --force

The folder has what transformers, transformers.js, ONNX Runtime GenAI, llama.cpp
and ollama load, the tokenizer in other formats, a page that chats, a model card
with figures from the metrics, and SHA256SUMS. The same run gives the same bytes.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The options of `chatmill pack`."""
    command.formatter_class, command.epilog = argparse.RawDescriptionHelpFormatter, EXAMPLES
    add = command.add_argument
    add("out", type=Path, metavar="OUT", help="folder to write")
    add("--data", type=Path, default=Path("data"), metavar="FOLDER", help="what the pipeline wrote (default: data)")
    add("--name", default="chatmill", help="the model's name in the card and on the page (default: %(default)s)")
    add("--force", action="store_true", help="replace a folder that was packed before")


def run(options: argparse.Namespace) -> None:
    """Write the folder, and print what is in it."""
    from chatmill.app.pack.packing import is_pack, pack  # slow to import

    if options.out.exists():
        if not options.force:
            raise ValueError(f"{options.out}: already exists: name a new folder, or pass --force")
        if not is_pack(options.out):
            raise ValueError(f"{options.out}: was not packed by chatmill, so it is not replaced: name a new folder")
    with atomic_output(options.out) as place, explain_full_disk([options.out]):
        shutil.rmtree(place, ignore_errors=True)
        packed = pack(options.data, place, options.name)
    size = sum(file.stat().st_size for file in options.out.rglob("*") if file.is_file())
    print(f"{options.out}: {size / 1e6:,.1f} MB: transformers, {', '.join(packed.parts)}")
    for part, reason in packed.missing.items():
        print(f"left out: {part}: {reason}")
