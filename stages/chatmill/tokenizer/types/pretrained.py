"""An external tokenizer, with the chat control tokens added after its last id."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel

from chatmill.tokenizer.formats.tokenizer_loading import make_lossless, read_vocabulary
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary

MINIMUM = 0  # text tokens; the file decides


class Settings(BaseModel, extra="forbid"):
    """Any file that chatmill.tokenizer.load reads; of a pair such as encoder.json and vocab.bpe, either."""

    path: Path


def train(texts: Iterable[str], num_text: int, settings: Settings) -> Vocabulary:
    """The file's vocabulary, whatever the texts and the requested size.

    Steps that put a space before every text or normalise to NFC are left out.
    """
    vocabulary = read_vocabulary(settings.path)
    try:
        return make_lossless(vocabulary)
    except ValueError as error:
        raise ValueError(f"{settings.path}: {error}: use a tokenizer that preserves every character") from error
