"""Convert a model to the Q8_0 files of qwen3.c, an engine that is one file of C."""

import argparse
from pathlib import Path

from chatmill.pipeline.outputs import atomic_output, explain_full_disk

EXAMPLES = """examples:
  chatmill qwen3c data/model exported/qwen3c
  runq exported/qwen3c/model.bin -t 0

OUT gets model.bin, and beside it the tokenizer and the prompts that the engine
looks for. A model whose shape the file cannot express is refused with the
reason. The engine does not escape what a user types: a control token's name
becomes the token.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The options of `chatmill qwen3c`."""
    command.formatter_class, command.epilog = argparse.RawDescriptionHelpFormatter, EXAMPLES
    add = command.add_argument
    add("model", type=Path, metavar="MODEL", help="a folder of the pipeline, or of Hugging Face with a Qwen3")
    add("out", type=Path, metavar="OUT", help="new folder to write the files into")


def run(options: argparse.Namespace) -> None:
    """Write the files, and print the size of the model and what the engine does otherwise."""
    from chatmill.app.qwen3c.export import MODEL, export_qwen3c  # slow to import

    if not options.model.is_dir():
        raise ValueError(f"{options.model}: no such folder: expected a model of the pipeline or of Hugging Face")
    if options.out.exists():
        raise ValueError(f"{options.out}: already exists: name a new folder")
    with atomic_output(options.out) as place, explain_full_disk([options.out]):
        reason = export_qwen3c(options.model, place)
    print(f"{options.out / MODEL}: {(options.out / MODEL).stat().st_size / 1e6:,.1f} MB")
    if reason:
        print(f"some texts get other ids in qwen3.c: {reason}")
