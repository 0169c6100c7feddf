"""Characters: the most frequent non-ASCII ones are tokens; all others are encoded as bytes."""

from collections import Counter
from collections.abc import Iterable

from chatmill.tokenizer.type_registry import NoSettings as Settings
from chatmill.tokenizer.vocabulary.patterns import CHARACTERS
from chatmill.tokenizer.vocabulary.vocabulary import Vocabulary, byte_level_vocabulary

MINIMUM = 256  # text tokens


def train(texts: Iterable[str], num_text: int, settings: Settings) -> Vocabulary:
    """The bytes, and as many characters as there is room for, the most frequent first."""
    counts: Counter[str] = Counter()
    for text in texts:
        if not text.isascii():
            counts.update(text)
    ranked = sorted((-count, character.encode()) for character, count in counts.items() if not character.isascii())
    return byte_level_vocabulary([character for _, character in ranked[: num_text - 256]], "char", "lookup", CHARACTERS)
