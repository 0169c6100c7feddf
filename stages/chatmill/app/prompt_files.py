"""Prompts in files, as the options of several commands name them."""

import sys
from pathlib import Path

from chatmill.datasets.formats.row_readers import MAX_ROW_BYTES

STDIN = "-"
PROMPT_FILE_HELP = "append the text of a file, or with - of stdin, to each prompt; alone it is the prompt"


def join_prompt(prompt: str | None, appended: str | None) -> str:
    """A prompt, and on the lines after it the text of a file; each may be missing."""
    parts = [part for part in (prompt, appended) if part is not None]
    return "\n".join(part.strip("\n").rstrip() for part in parts).strip("\n")


def read_text(file: str) -> str:
    """The text of a UTF-8 file, or with - of standard input. Raises ValueError with the place of an invalid byte."""
    if file == STDIN:
        content, name = sys.stdin.buffer.read(MAX_ROW_BYTES + 1), "standard input"
    else:
        with Path(file).open("rb") as stream:
            content, name = stream.read(MAX_ROW_BYTES + 1), file
    if len(content) > MAX_ROW_BYTES:
        raise ValueError(f"{name}: over {MAX_ROW_BYTES:,} bytes: shorten it")
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 at byte {error.start}: save it as UTF-8") from error
