"""WordPiece on bytes: the longest entry that a piece begins with, then the longest that continues it, and so on.

Every byte is an entry twice, at the start of a piece and inside it, so that any text can be spelt. Entries are learnt
as BPE learns them, on 512 letters: the WordPiece trainer of `tokenizers` gives another vocabulary each time.
"""

from collections.abc import Iterable, Iterator

import regex
from pydantic import BaseModel
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from chatmill.tokenizer.vocabulary.patterns import Pattern, bounded
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary, rank_scores

MINIMUM = 512  # text tokens
EXACT = True  # fewer text tokens than asked are an error
INITIAL, INSIDE = 0xE000, 0xE100  # the letters of the byte 0 at the start of a piece, and inside it


class Settings(BaseModel, extra="forbid"):
    """How text is cut into pieces; those of over 100 bytes are cut further."""

    pattern: Pattern = "qwen2"


def train(texts: Iterable[str], num_text: int, settings: Settings) -> Vocabulary:
    """At most `num_text` entries: the bytes twice, then longer ones in the order in which they were learnt."""
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
    """A piece in letters; each piece is spelt once."""

    def __missing__(self, piece: str) -> str:
        first, *others = piece.encode()
        self[piece] = chr(INITIAL + first) + "".join(chr(INSIDE + byte) for byte in others)
        return self[piece]


def _lettered(texts: Iterable[str], pattern: str) -> Iterator[str]:
    find, letters = regex.compile(pattern).findall, _Letters()
    for text in texts:
        yield " ".join(map(letters.__getitem__, find(text)))
