"""Write the tokenizer in every format that can express it."""

from pathlib import Path

from chatmill.pipeline.signatures import Output
from chatmill.pipeline.stage import stage
from chatmill.tokenizer.exporting.exports import ExportFormat, export_all
from chatmill.tokenizer.vocabulary.tokenizer_folder import read_folder


@stage
def main(tokenizer: Path, out: Output, *, formats: list[ExportFormat]) -> None:
    """Read a tokenizer folder; write each supported format, and `formats.json` with files or a reason for each."""
    export_all(formats, tokenizer, read_folder(tokenizer), out)
