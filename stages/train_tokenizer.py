"""Train the tokenizer of the chosen type."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from chatmill.conversation import CONTROL_TOKENS, Record, text_hash
from chatmill.pipeline.params_file import check_external
from chatmill.pipeline.progress import log, progress
from chatmill.pipeline.signatures import Output
from chatmill.pipeline.stage import stage
from chatmill.record_files import read_records
from chatmill.tokenizer.type_registry import TokenizerParameters, load_type
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens, check_special_tokens, write_folder
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary

CONTROL_PATTERN = re.compile("|".join(map(re.escape, CONTROL_TOKENS)))


def sample_conversations(chat: Path, max_bytes: int | None) -> Iterator[Record]:
    """All conversations of a file of at most `max_bytes`; of a larger file, a random sample of about that size.

    The hash of each text decides whether it is sampled: the order does not matter, more bytes only add conversations,
    and all copies of a conversation are sampled or none.
    """
    records = progress(read_records(chat), "train_tokenizer", unit=" conversations")
    size = chat.stat().st_size
    yield from records if max_bytes is None or size <= max_bytes else _sample_fraction(records, max_bytes / size)


def _sample_fraction(records: Iterable[Record], fraction: float) -> Iterator[Record]:
    """The records whose hash falls into that fraction of all hashes; logs their number at the end."""
    count = num_sampled = num_bytes = sampled_bytes = 0
    for record in records:
        text = record.text.encode()
        count, num_bytes = count + 1, num_bytes + len(text)
        if text_hash(record.text) / 2**64 < fraction:
            num_sampled, sampled_bytes = num_sampled + 1, sampled_bytes + len(text)
            yield record
    sizes = f"{num_sampled:,} of {count:,} conversations, {sampled_bytes:,} of {num_bytes:,} bytes of text"
    log("train_tokenizer", f"trained on {sizes}")


def texts_between_controls(records: Iterable[Record]) -> Iterator[str]:
    """The texts between control tokens; each is encoded by itself."""
    for record in records:
        yield from filter(None, CONTROL_PATTERN.split(record.text))


def check_vocab_size(vocabulary: Vocabulary, vocab_size: int, exact: bool) -> None:
    """Log a vocabulary of another size than requested, or raise ValueError if `exact`."""
    size = len(vocabulary.tokens)
    if size != vocab_size and exact:
        raise ValueError(
            f"params.yaml: train_tokenizer.vocab_size = {vocab_size}: the text supports only {size}: "
            f"lower train_tokenizer.vocab_size to at most {size}, or add text"
        )
    if size != vocab_size:
        log("train_tokenizer", f"the vocabulary has {size} tokens; vocab_size = {vocab_size}")


@stage
def main(chat: Path, external: Path, tokenizer: Output, *, parameters: TokenizerParameters) -> None:
    """Read the training conversations, or a sample of about `max_bytes`; write the tokenizer's folder.

    `external` is the folder of the files that a type's settings refer to.
    """
    check_special_tokens(parameters.special_tokens)
    trainer, settings = load_type(parameters.type), parameters.settings
    for name, value in settings:
        if isinstance(value, Path):
            check_external(value, external, f"train_tokenizer.{parameters.type}.{name}")
    spans = texts_between_controls(sample_conversations(chat, parameters.max_bytes))
    trained = trainer.train(spans, parameters.vocab_size - parameters.num_controls, settings)
    vocabulary = add_special_tokens(trained, parameters.special_tokens)
    check_vocab_size(vocabulary, parameters.vocab_size, trainer.EXACT)
    write_folder(vocabulary, tokenizer)
