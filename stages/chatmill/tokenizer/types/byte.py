"""Bytes: each of the 256 is a token, and there are no others."""

from collections.abc import Iterable

from chatmill.tokenizer.type_registry import NoSettings as Settings
from chatmill.tokenizer.vocabulary.patterns import ANYTHING
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary, byte_level_vocabulary

MINIMUM = 256  # text tokens


def train(texts: Iterable[str], num_text: int, settings: Settings) -> Vocabulary:
    """The bytes in their order, whatever the texts."""
    return byte_level_vocabulary([], "byte", "lookup", ANYTHING)
