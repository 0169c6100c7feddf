"""Train the tokenizer of the chosen type."""

import hashlib
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import create_model

from chatmill.conversation.chatml import CONTROL_TOKENS, Record, read_records
from chatmill.pipeline.progress import progress
from chatmill.pipeline.stage import Output, PositiveInt, stage
from chatmill.tokenizer import types
from chatmill.tokenizer.vocabulary.files import MULTIPLE, check_special_tokens, complete, write_folder
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary

CONTROL = re.compile("|".join(map(re.escape, CONTROL_TOKENS)))


def load_type(name: str, sections: dict[str, Any]) -> ModuleType:
    """The module that trains a type. Raises ValueError for a name, or a section, that is no type's."""
    names = sorted(module.name for module in pkgutil.iter_modules(types.__path__))
    if name not in names:
        raise ValueError(f"params.yaml: train_tokenizer.type = {name!r}: expected one of {', '.join(names)}")
    for section in sections.keys() - set(names):
        raise ValueError(f"params.yaml: unknown parameter train_tokenizer.{section}")
    return importlib.import_module(f"{types.__name__}.{name}")


def sample(chat: Path, max_bytes: int | None) -> Iterator[Record]:
    """The conversations of a file of at most `max_bytes`; of a larger file, whole ones of about that size in all.

    A hash of its text decides on each: so their order does not matter, more bytes only add to them, and repetitions
    stay together.
    """
    records = progress(read_records(chat), "train_tokenizer", unit=" conversations")
    size = chat.stat().st_size
    yield from records if max_bytes is None or size <= max_bytes else _share(records, max_bytes / size)


def _share(records: Iterable[Record], share: float) -> Iterator[Record]:
    """The records whose hash is below that share of all hashes; at their end, say how many they were."""
    count = kept = num_bytes = kept_bytes = 0
    for record in records:
        text = record.text.encode()
        count, num_bytes = count + 1, num_bytes + len(text)
        if int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") / 2**64 < share:
            kept, kept_bytes = kept + 1, kept_bytes + len(text)
            yield record
    sizes = f"{kept:,} of {count:,} conversations, {kept_bytes:,} of {num_bytes:,} bytes of text"
    print(f"train_tokenizer: trained on {sizes}", file=sys.stderr)


def read_spans(records: Iterable[Record]) -> Iterator[str]:
    """The text between control tokens: what is encoded in one call each."""
    for record in records:
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
    max_bytes: PositiveInt | None = None,
    **settings: dict[str, Any] | None,
) -> None:
    """Read the training conversations, or of more than `max_bytes` a sample; write the tokenizer's folder."""
    check_special_tokens(special_tokens)
    trainer = load_type(type, settings)
    num_controls = len(CONTROL_TOKENS) + len(special_tokens)
    check_size(vocab_size, num_controls, trainer)
    section = create_model("Section", **{type: (trainer.Settings, ...)})  # so that errors name the section
    chosen = getattr(section.model_validate({type: settings.get(type) or {}}), type)
    text = trainer.train(read_spans(sample(chat, max_bytes)), vocab_size - num_controls, chosen)
    vocabulary = complete(text, special_tokens)
    compare_size(vocabulary, vocab_size, trainer.EXACT)
    write_folder(vocabulary, tokenizer)
