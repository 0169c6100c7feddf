"""Show a text or a conversation token by token, in the terminal or as a page; several tokenizers side by side."""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, get_args

from chatmill.app.arguments import MAX_INPUT_BYTES
from chatmill.app.inputs import TextOrConversation, parse_input, read_input_file
from chatmill.app.named_models import repro_commands
from chatmill.app.terminal.text import StyledLine, aligned, print_lines
from chatmill.app.terminal.tokens import grid, legend
from chatmill.conversation import Record, TemplateName, record_segments
from chatmill.datasets.records import records
from chatmill.datasets.repair import SourceParameters, Tally
from chatmill.pipeline.params_file import PARAMS_FILE, read_params, section_errors
from chatmill.report.markup import Html, document, number, section, table, tag
from chatmill.report.token_view import (
    Token,
    conversation_tokens,
    loss_mask_view,
    segment_tokens,
    text_tokens,
    token_list,
)
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.tokenizer_loading import load
from chatmill.tokenizer.vocabulary.patterns import ANYTHING
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens
from chatmill.tokenizer.vocabulary.vocabulary import byte_level_vocabulary

DEFAULT_TOKENIZER = Path("data/tokenizer")  # written by the pipeline
SIZES = ("", "type", "text vocabulary", "tokens", "bytes per token")  # columns of a table


class View(NamedTuple):
    name: str
    tokenizer: ChatTokenizer
    tokens: list[Token]


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("text", nargs="?", metavar="TEXT", help="a text, ChatML, or JSON with messages (default: stdin)")
    add("--file", type=Path, metavar="FILE", help="read a text, or conversations as JSON lines, from a file instead")
    add("--source", metavar="NAME", help="read a dataset of params.yaml as `prepare` does, before anything is trained")
    add("--index", type=int, default=1, metavar="N", help="number of the conversation in the input (default: 1)")
    add(
        "--tokenizer",
        type=Path,
        action="append",
        metavar="PATH",
        help=f"folder or file; may be repeated (default: {DEFAULT_TOKENIZER}; with --source bytes, until there is one)",
    )
    add("--template", choices=get_args(TemplateName), default="chatml", help="of conversations (default: %(default)s)")
    add("--html", type=Path, metavar="FILE", help="write an HTML page instead of printing")


def run(options: argparse.Namespace) -> None:
    content = read_input(options)
    tokenizers = read_tokenizers(options).items()
    views = [View(name, one, tokens_of(content, one, options.template)) for name, one in tokenizers]
    if options.html:
        options.html.write_text(page(content, views), encoding="utf-8")
    else:
        print_views(content, views)


def read_input(options: argparse.Namespace) -> TextOrConversation:
    if options.index < 1:
        raise ValueError(f"--index: expected 1 or more, got {options.index}")
    if len(given := [name for name in ("text", "file", "source") if getattr(options, name) is not None]) > 1:
        raise ValueError(f"{' and '.join(given)}: pass only one of TEXT, --file and --source")
    if options.source:
        return read_source(options.source, options.index)
    if options.file:
        return read_input_file(options.file, options.index)
    if options.text is not None:
        return parse_input(os.fsencode(options.text), options.index, "TEXT")
    if sys.stdin.isatty():
        raise ValueError("nothing to show: pass a text or --file, or pipe a text in")
    return parse_input(sys.stdin.buffer.read(MAX_INPUT_BYTES + 1), options.index, "standard input")


def read_source(name: str, number: int) -> Record:
    """Conversation `number`, from 1, of a dataset in params.yaml. Raises ValueError where there is none."""
    sections = read_params().get("prepare") or {}
    if not isinstance(sections, dict):
        raise ValueError(f"{PARAMS_FILE}: prepare: expected sections of sources, got {sections!r:.100}")
    if name not in sections:
        raise ValueError(f"--source {name}: params.yaml has no prepare.{name}: expected one of {', '.join(sections)}")
    if errors := section_errors(f"prepare.{name}", sections[name], SourceParameters):
        raise ValueError(f"{PARAMS_FILE}: {errors[0]}")
    entries = records(name, SourceParameters.model_validate(sections[name]), Tally())
    found = (entry for entry in entries if isinstance(entry, Record))
    if (record := next(islice(found, number - 1, None), None)) is None:
        raise ValueError(f"--source {name}: no conversation {number}: the dataset has fewer")
    return record


def read_tokenizers(options: argparse.Namespace) -> dict[str, ChatTokenizer]:
    """The tokenizers by name. Before one is trained, each byte of a dataset is a token."""
    if options.source and not options.tokenizer and not DEFAULT_TOKENIZER.exists():
        print(f"no {DEFAULT_TOKENIZER} here, so that each byte is a token: see --tokenizer", file=sys.stderr)
        plain = byte_level_vocabulary([], "byte", "lookup", ANYTHING)
        return {"bytes": ChatTokenizer(add_special_tokens(plain, []))}
    return {str(path): read_tokenizer(path) for path in options.tokenizer or [DEFAULT_TOKENIZER]}


def read_tokenizer(path: Path) -> ChatTokenizer:
    """The tokenizer in a folder or file; missing control tokens are added after its last id, as in training."""
    if path == DEFAULT_TOKENIZER and not path.exists():
        raise ValueError(f"no {DEFAULT_TOKENIZER} here: name a tokenizer with --tokenizer, or run {repro_commands()}")
    return ChatTokenizer(add_special_tokens(load(path).vocabulary, []))


def tokens_of(content: TextOrConversation, tokenizer: ChatTokenizer, template: TemplateName) -> list[Token]:
    if isinstance(content, str):
        return text_tokens(content, tokenizer)
    if isinstance(content, Record):
        return segment_tokens(record_segments(content, template), tokenizer)
    return conversation_tokens(content, tokenizer, template)


def sizes(views: Sequence[View]) -> Sequence[Sequence[str]]:
    """The rows of SIZES for each tokenizer; bytes per token are of text, without control tokens."""
    rows = []
    for name, tokenizer, tokens in views:
        text = [token.content for token in tokens if not token.is_control]
        per_token = number(sum(map(len, text)) / len(text) if text else None, decimals=2)
        rows.append((name, tokenizer.vocabulary.type, f"{tokenizer.num_text:,}", f"{len(tokens):,}", per_token))
    return rows


def print_views(content: TextOrConversation, views: Sequence[View]) -> None:
    columns, lines = shutil.get_terminal_size().columns, list[StyledLine]()
    for name, _, tokens in views:
        lines += [[("bold", name)]] if len(views) > 1 else []
        lines += [] if isinstance(content, str) else [legend(tokens), []]
        lines += grid(tokens, columns)
    print_lines([*lines, *aligned("Tokenizers", SIZES, sizes(views))], sys.stdout)


def page(content: TextOrConversation, views: Sequence[View]) -> Html:
    """The same as a page, which for a text begins with the text itself."""
    is_text = isinstance(content, str)
    text = [tag("p", content, class_="answer", dir="auto")] if is_text else []
    sections = [section(name, (token_list if is_text else loss_mask_view)(tokens)) for name, _, tokens in views]
    return document(
        "chatmill show", *text, *sections, section("Side by side", table("Tokenizers", SIZES, sizes(views)))
    )
