"""Write the tokenizer in every format that can express it."""

import json
from pathlib import Path

from chatmill.manifest import write_manifest
from chatmill.stage import Output, stage
from chatmill.tokenizer.exports import Format, export
from chatmill.tokenizer.files import read_folder


@stage
def main(tokenizer: Path, out: Output, *, formats: list[Format]) -> None:
    """Read a tokenizer folder; write each format that it can have, and `formats.json`: which, and why not."""
    vocabulary = read_folder(tokenizer)
    out.mkdir(parents=True)
    written = {format: export(format, tokenizer, vocabulary, out) for format in formats}
    (out / "formats.json").write_text(json.dumps(written, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    write_manifest(out, kind="tokenizer", fingerprint=vocabulary.fingerprint)
