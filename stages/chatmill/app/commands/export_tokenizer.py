"""Convert a tokenizer to every format that can express it."""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from chatmill.app import arguments
from chatmill.tokenizer.exporting.exports import ExportFormat, export_all
from chatmill.tokenizer.exporting.parity import compare_exports, open_original, read_texts
from chatmill.tokenizer.formats.tokenizer_loading import read_vocabulary
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens, write_folder
from chatmill.tokenizer.vocabulary.vocabulary import Kind, check_vocabulary

FORMATS = get_args(ExportFormat)


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    inputs = "a tokenizer.json, .tiktoken, .model, .pkl or .bin; an encoder.json beside vocab.bpe, a vocab.json beside "
    inputs += "merges.txt, or a vocab.txt; or a folder with one of them"
    add("tokenizer", type=Path, metavar="PATH", help=inputs)
    add("out", type=Path, metavar="OUT", help="new folder to write the formats into")
    outputs = f"formats to write: {', '.join(FORMATS)} (default: all)"
    add("--formats", nargs="+", choices=FORMATS, default=FORMATS, metavar="FORMAT", help=outputs)
    add("--add-chat-tokens", action="store_true", help="add chatmill's control tokens, under unused or new ids")
    check = "check for each line of this text that all formats give the ids of the original in its own library"
    add("--check", type=Path, metavar="FILE", help=check)


def run(options: argparse.Namespace) -> None:
    with arguments.new_output(options.out) as place, TemporaryDirectory() as folder:
        vocabulary = original = read_vocabulary(options.tokenizer)
        if options.add_chat_tokens:
            vocabulary = add_special_tokens(vocabulary, [])
            check_vocabulary(vocabulary)
        texts = read_texts(options.check) if options.check else []
        write_folder(vocabulary, Path(folder, "source"))
        written = export_all(options.formats, Path(folder, "source"), vocabulary, place)
    for format, entry in written.items():
        example = f" (as in {entry['example']!r})" if "example" in entry else ""
        remark = f": {entry['reason']}{example}" if "reason" in entry else ""
        print(f"{format:16} {', '.join(entry.get('files', ['-']))}{remark}")
    if texts:
        added = set(vocabulary.special) - set(original.special)
        reference = open_original(options.tokenizer, original)
        special = original.named(Kind.CONTROL, Kind.UNKNOWN)
        for line in compare_exports(reference, options.out, texts, special, added):
            print(line)
