"""WordPiece over bytes: a piece is split into its longest initial entry, then the longest continuation, and so on.

Every byte has two entries, for the start of a piece and inside it, so that any text can be encoded. Entries are trained
by BPE on 512 letters: the WordPiece trainer of `tokenizers` gives another vocabulary each time.
"""

from collections.abc import Iterable, Iterator

import regex
from pydantic import BaseModel
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from chatmill.tokenizer.vocabulary.patterns import Pattern, bounded
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary, rank_scores

MINIMUM = 512  # text tokens
INITIAL, INSIDE = 0xE000, 0xE100  # the letters for the byte 0 at the start of a piece, and inside it


class Settings(BaseModel, extra="forbid"):
    """The split pattern; pieces of over 100 bytes are split further."""

    pattern: Pattern = "qwen2"


def train(texts: Iterable[str], num_text: int, settings: Settings) -> Vocabulary:
    """At most `num_text` entries: the bytes twice, then longer ones in the order of training."""
    pattern = bounded(settings.pattern)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    letters = [chr(first + byte) for first in (INITIAL, INSIDE) for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=num_text, initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(_lettered(texts, pattern), trainer)
    ids = tokenizer.get_vocab()
    pieces = sorted(ids, key=ids.__getitem__)
    tokens = tuple(bytes(ord(letter) % 256 for letter in piece) for piece in pieces)
    kinds = tuple(Kind.NORMAL if ord(piece[0]) < INSIDE else Kind.CONTINUATION for piece in pieces)
    return Vocabulary("wordpiece", "wordpiece", pattern, tokens, kinds, rank_scores(tokens, kinds))


class _Letters(dict[str, str]):
    def __missing__(self, piece: str) -> str:
        first, *others = piece.encode()
        self[piece] = chr(INITIAL + first) + "".join(chr(INSIDE + byte) for byte in others)
        return self[piece]


def _lettered(texts: Iterable[str], pattern: str) -> Iterator[str]:
    find, letters = regex.compile(pattern).findall, _Letters()
    for text in texts:
        yield " ".join(map(letters.__getitem__, find(text)))
