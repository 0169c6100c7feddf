"""Write a tokenizer made anywhere in every format that can express it."""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, get_args

from chatmill.manifest import write_manifest
from chatmill.tokenizer.exports import Format, export
from chatmill.tokenizer.files import complete, write_folder
from chatmill.tokenizer.loading import read_vocabulary
from chatmill.tokenizer.parity import compare, read_texts
from chatmill.tokenizer.soundness import check

FORMATS = get_args(Format)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The options of `chatmill export-tokenizer`."""
    add = command.add_argument
    add(
        "tokenizer",
        type=Path,
        metavar="PATH",
        help="a tokenizer.json, .tiktoken, .model, .pkl, .bin, encoder.json beside vocab.bpe, vocab.json beside "
        "merges.txt, or vocab.txt; or a folder with one of them",
    )
    add("out", type=Path, metavar="OUT", help="a folder that is not there yet")
    add("--formats", nargs="+", choices=FORMATS, default=FORMATS, metavar="FORMAT", help=f"of {', '.join(FORMATS)}")
    add("--add-chat-tokens", action="store_true", help="give unused or new ids to the control tokens of chats")
    add("--check", type=Path, metavar="FILE", help="compare the ids that all formats give for each line of this text")


def run(options: argparse.Namespace) -> None:
    """Write the formats, say what became of each, and compare them."""
    if options.out.exists():
        raise ValueError(f"{options.out}: it is there already: name a folder that is not")
    vocabulary = read_vocabulary(options.tokenizer)
    if options.add_chat_tokens:
        vocabulary = complete(vocabulary, [])
        check(vocabulary)
    texts = read_texts(options.check) if options.check else []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.out.parent) as folder:
        source, out = Path(folder, "source"), Path(folder, "out")
        write_folder(vocabulary, source)
        out.mkdir()
        written = {format: export(format, source, vocabulary, out) for format in options.formats}
        (out / "formats.json").write_text(json.dumps(written, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        write_manifest(out, kind="tokenizer", fingerprint=vocabulary.fingerprint)
        shutil.move(out, options.out)
    for format, entry in written.items():
        print(f"{format:16} {', '.join(entry.get('files', ['-']))}{_remark(entry)}")
    for line in compare(vocabulary, options.out, texts) if texts else ():
        print(line)


def _remark(entry: dict[str, Any]) -> str:
    example = f" (as in {entry['example']!r})" if "example" in entry else ""
    return f": {entry['reason']}{example}" if "reason" in entry else ""
