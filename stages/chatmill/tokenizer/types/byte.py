"""The 256 bytes, and nothing else."""

from collections.abc import Iterable

from pydantic import BaseModel

from chatmill.tokenizer.vocabulary.patterns import ANYTHING
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary, byte_level_vocabulary

MINIMUM = 256  # text tokens
EXACT = False  # fewer text tokens than asked are no error


class Settings(BaseModel, extra="forbid"):
    """Nothing to choose."""


def train(texts: Iterable[str], num_text: int, settings: Settings) -> Vocabulary:
    """The bytes in their order, whatever the texts."""
    return byte_level_vocabulary([], "byte", "lookup", ANYTHING)
