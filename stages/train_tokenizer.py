"""Train the tokenizer of the chosen type."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from chatmill.conversation import CONTROL_TOKENS, Record
from chatmill.pipeline.params_file import check_external
from chatmill.pipeline.progress import log
from chatmill.pipeline.signatures import InitialModel, Output
from chatmill.pipeline.stage import stage
from chatmill.record_files import sample_records
from chatmill.tokenizer.formats.tokenizer_loading import make_lossless, read_vocabulary
from chatmill.tokenizer.type_registry import TokenizerParameters, load_type
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens, check_special_tokens, write_folder

CONTROL_PATTERN = re.compile("|".join(map(re.escape, CONTROL_TOKENS)))


def texts_between_controls(records: Iterable[Record]) -> Iterator[str]:
    """The texts between control tokens; each is encoded by itself."""
    for record in records:
        yield from filter(None, CONTROL_PATTERN.split(record.text))


@stage
def main(
    chat: Path,
    pretrained: Path,
    models: Path,
    tokenizer: Output,
    *,
    initial: InitialModel,
    parameters: TokenizerParameters,
) -> None:
    """Read the training conversations, or a sample of about `max_bytes`; write the tokenizer's folder.

    `pretrained` is the folder of the files that a type's settings refer to, `models` that of initial models: where
    `train_model.initial` is one, its tokenizer is taken.
    """
    check_special_tokens(parameters.special_tokens)
    if initial is not None:
        check_external(initial, models, "train_model.initial")
        vocabulary = make_lossless(read_vocabulary(initial))
        write_folder(add_special_tokens(vocabulary, parameters.special_tokens), tokenizer)
        return
    trainer, settings = load_type(parameters.type), parameters.settings
    for name, value in settings:
        if isinstance(value, Path):
            check_external(value, pretrained, f"train_tokenizer.{parameters.type}.{name}")
    spans = texts_between_controls(sample_records(chat, parameters.max_bytes, "train_tokenizer"))
    trained = trainer.train(spans, parameters.vocab_size - parameters.num_controls, settings)
    vocabulary = add_special_tokens(trained, parameters.special_tokens)
    if (size := len(vocabulary.tokens)) != parameters.vocab_size:  # a short text supports fewer
        log("train_tokenizer", f"the vocabulary has {size} tokens; vocab_size = {parameters.vocab_size}")
    write_folder(vocabulary, tokenizer)
