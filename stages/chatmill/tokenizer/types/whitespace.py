"""Words: the most frequent ones are tokens, with the space before them; all others are encoded as bytes.

No word of two bytes is a token: tiktoken merges pairs of bytes, and would find it inside unknown words, too; a longer
one it does not, as no token is its first two bytes. So `is` is two tokens, but ` is` is one.
"""

from collections import Counter
from collections.abc import Iterable

import regex

from chatmill.tokenizer.type_registry import NoSettings as Settings
from chatmill.tokenizer.vocabulary.patterns import WORDS
from chatmill.tokenizer.vocabulary.vocabulary import MAX_TOKEN_BYTES, Vocabulary, byte_level_vocabulary

MINIMUM = 256  # text tokens


def train(texts: Iterable[str], num_text: int, settings: Settings) -> Vocabulary:
    """The bytes, and as many words as there is room for, the most frequent first."""
    find = regex.compile(WORDS).findall
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(find(text))
    words = ((-count, word.encode()) for word, count in counts.items())
    ranked = sorted(entry for entry in words if 2 < len(entry[1]) <= MAX_TOKEN_BYTES)
    return byte_level_vocabulary([word for _, word in ranked[: num_text - 256]], "whitespace", "lookup", WORDS)
