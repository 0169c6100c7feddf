"""Options that several commands have, and what follows from them."""

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from math import inf
from pathlib import Path
from typing import Any

from chatmill.inference.sampler import Sampling
from chatmill.pipeline.outputs import atomic_output, explain_full_disk

Add = Callable[..., Any]  # add_argument of a command, or of a group of its options
MAX_THREADS = 1024
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


def add_repeated(add: Add, *names: str, help: str, **options: Any) -> None:
    add(*names, action="append", default=[], help=f"{help}; may be repeated", **options)


def add_device(add: Add) -> None:
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps … (default: auto, the fastest available)")
    add("--threads", type=int, metavar="N", help="processor threads (default: chosen for the model)")


def add_loading(add: Add) -> None:
    add("--tokenizer", type=Path, metavar="PATH", help="tokenizer to use instead of the model's own")
    add("--template", metavar="NAME", help="chat template: chatml, markers, llama3 … (default: the model's own)")
    add("--trust-tokenizer", action="store_true", help="accept a tokenizer that the model was not trained with")
    add_device(add)


def loading(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `load_model`."""
    return {name: getattr(options, name) for name in ("tokenizer", "template", "trust_tokenizer", "device", "threads")}


def add_answers(add: Add) -> None:
    tokens_help = "maximum tokens of an answer (default: %(default)s)"
    add("--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help=tokens_help)
    add("--temperature", type=float, default=0.0, metavar="T", help="0 (default): always the likeliest token")
    add("--top-k", type=int, default=0, metavar="N", help="only the top N tokens; 0 (default): all")
    add("--top-p", type=float, default=1.0, metavar="P", help="only the top tokens with total probability P")
    add("--min-p", type=float, default=0.0, metavar="P", help="only tokens P times as likely as the top one")
    add("--repetition-penalty", type=float, default=1.0, metavar="R", help="above 1: fewer repetitions")
    add("--presence-penalty", type=float, default=0.0, metavar="P", help="above 0: fewer repetitions")
    add("--frequency-penalty", type=float, default=0.0, metavar="F", help="the same, growing with each repetition")


def add_seed(add: Add) -> None:
    add("--seed", type=int, default=0, metavar="N", help="seed of the random numbers (default: %(default)s)")


def sampling(options: argparse.Namespace) -> Sampling:
    given = vars(options)
    return Sampling(**{field.name: given[field.name] for field in fields(Sampling) if field.name in given})


def check_range(name: str, value: float, minimum: float, maximum: float = inf) -> None:
    if not minimum <= value <= maximum:
        expected = f"{minimum} or more" if maximum == inf else f"{minimum} to {maximum}"
        raise ValueError(f"{name}: expected {expected}, got {value}")


def check_positive(name: str, value: int) -> int:
    """The value. Raises ValueError where it is less than 1."""
    check_range(name, value, 1)
    return value


def unescaped(text: str) -> str:
    r"""Replace `\n`, `\t` and `\\` by a newline, a tab and a backslash."""
    return re.sub(r"\\[nt\\]", lambda match: _ESCAPES[match[0]], text)


def check_answers(options: argparse.Namespace) -> None:
    """Raise ValueError for numbers of tokens or threads out of range."""
    check_positive("--max-tokens", options.max_tokens)
    if options.threads is not None:
        check_range("--threads", options.threads, 1, MAX_THREADS)


def check_model_folder(model: Path) -> None:
    if not model.is_dir():
        raise ValueError(f"{model}: no such folder: expected a model of the pipeline or of Hugging Face")


@contextmanager
def new_output(out: Path, *, replaces: bool = False) -> Iterator[Path]:
    """A temporary path that becomes `out` at the end. Raises ValueError where that exists, unless it `replaces` it."""
    if out.exists() and not replaces:
        raise ValueError(f"{out}: already exists: name a new folder")
    with atomic_output(out) as place, explain_full_disk([out]):
        yield place


# Prompts in files, as the options of several commands name them.

MAX_TOKENS = 256  # of an answer, where a user names no number
MAX_INPUT_BYTES = 16_000_000  # of a text, or of a line of a file
STDIN = "-"
PROMPT_FILE_HELP = "append the text of a file, or with - of stdin, to each prompt; alone it is the prompt"


def join_prompt(prompt: str | None, appended: str | None) -> str:
    """A prompt, and on the lines after it the text of a file; each may be missing."""
    parts = [part for part in (prompt, appended) if part is not None]
    return "\n".join(part.strip("\n").rstrip() for part in parts).strip("\n")


def read_text(file: str) -> str:
    """The text of a UTF-8 file, or of standard input if it is -. Raises ValueError for what `decode` refuses."""
    if file == STDIN:
        return decode(sys.stdin.buffer.read(MAX_INPUT_BYTES + 1), "standard input")
    with Path(file).open("rb") as stream:
        return decode(stream.read(MAX_INPUT_BYTES + 1), file)


def decode(content: bytes, name: str, max_bytes: float = MAX_INPUT_BYTES) -> str:
    """The text, without a byte order mark. Raises ValueError for too many bytes, or for one that is not UTF-8."""
    if len(content) > max_bytes:
        raise ValueError(f"{name}: over {max_bytes:,} bytes: shorten it")
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 at byte {error.start}: save it as UTF-8") from error
