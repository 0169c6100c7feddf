"""Train the tokenizer of the chosen type."""

import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import create_model

from chatmill.conversation import CONTROL_TOKENS, read_records
from chatmill.progress import progress
from chatmill.stage import Output, PositiveInt, stage
from chatmill.tokenizer import types
from chatmill.tokenizer.files import MULTIPLE, check_special_tokens, complete, write_folder
from chatmill.tokenizer.vocabulary import Vocabulary

CONTROL = re.compile("|".join(map(re.escape, CONTROL_TOKENS)))


def load_type(name: str, sections: dict[str, Any]) -> ModuleType:
    """The module that trains a type. Raises ValueError for a name, or a section, that is no type's."""
    names = sorted(module.name for module in pkgutil.iter_modules(types.__path__))
    if name not in names:
        raise ValueError(f"params.yaml: train_tokenizer.type = {name!r}: expected one of {', '.join(names)}")
    for section in sections.keys() - set(names):
        raise ValueError(f"params.yaml: unknown parameter train_tokenizer.{section}")
    return importlib.import_module(f"{types.__name__}.{name}")


def read_spans(chat: Path) -> Iterator[str]:
    """The text between control tokens: what is encoded in one call each."""
    for record in progress(read_records(chat), "train_tokenizer", unit=" conversations"):
        yield from filter(None, CONTROL.split(record.text))


def check_size(vocab_size: int, num_controls: int, trainer: ModuleType) -> None:
    """Raise ValueError where no vocabulary of the type can have that size."""
    name = trainer.__name__.rpartition(".")[2]
    if vocab_size % MULTIPLE:
        raise ValueError(f"params.yaml: train_tokenizer.vocab_size = {vocab_size}: must be a multiple of {MULTIPLE}")
    least = -(-(trainer.MINIMUM + num_controls) // MULTIPLE) * MULTIPLE
    if vocab_size < least:
        raise ValueError(f"params.yaml: train_tokenizer.vocab_size = {vocab_size}: {name} needs at least {least}")


def compare_size(vocabulary: Vocabulary, vocab_size: int, exact: bool) -> None:
    """Say where the vocabulary is not of the size that was asked for, or raise ValueError where that is an error."""
    size = len(vocabulary.tokens)
    if size != vocab_size and exact:
        raise ValueError(
            f"params.yaml: train_tokenizer.vocab_size = {vocab_size}: the text does not support it: "
            f"lower train_tokenizer.vocab_size to at most {size} or add text"
        )
    if size != vocab_size:
        print(f"train_tokenizer: {size} tokens, where vocab_size allows {vocab_size}", file=sys.stderr)


@stage
def main(
    chat: Path,
    tokenizer: Output,
    *,
    type: str,
    vocab_size: PositiveInt,
    special_tokens: list[str],
    **settings: dict[str, Any] | None,
) -> None:
    """Read the training conversations; write the tokenizer's folder."""
    check_special_tokens(special_tokens)
    trainer = load_type(type, settings)
    num_controls = len(CONTROL_TOKENS) + len(special_tokens)
    check_size(vocab_size, num_controls, trainer)
    section = create_model("Section", **{type: (trainer.Settings, ...)})  # so that errors name the section
    chosen = getattr(section.model_validate({type: settings.get(type) or {}}), type)
    text = trainer.train(read_spans(chat), vocab_size - num_controls, chosen)
    vocabulary = complete(text, special_tokens)
    compare_size(vocabulary, vocab_size, trainer.EXACT)
    write_folder(vocabulary, tokenizer)
