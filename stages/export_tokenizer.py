"""Write the tokenizer in every format that can express it."""

from pathlib import Path

from chatmill.pipeline.stage import Output, stage
from chatmill.tokenizer.exporting.exports import Format, export_all
from chatmill.tokenizer.vocabulary.files import read_folder


@stage
def main(tokenizer: Path, out: Output, *, formats: list[Format]) -> None:
    """Read a tokenizer folder; write each format that it can have, and `formats.json`: which, and why not."""
    export_all(formats, tokenizer, read_folder(tokenizer), out)
