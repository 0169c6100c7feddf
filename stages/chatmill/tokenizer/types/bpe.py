"""Byte-level BPE: starting from bytes, the most frequent pair of adjacent tokens is merged, again and again."""

import re
from collections.abc import Iterable, Iterator
from typing import Literal

import regex
import rustbpe
from pydantic import BaseModel, Field
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from chatmill.tokenizer.vocabulary.patterns import PATTERNS, Pattern
from chatmill.tokenizer.vocabulary.vocabulary import (
    MAX_TOKEN_BYTES,
    Vocabulary,
    byte_level_entry,
    byte_level_vocabulary,
)

MINIMUM = 256  # text tokens

# rustbpe counts pairs in 32 bits, and no pair is more frequent than there are bytes. From 2,148 MB of one letter on, it
# silently takes the most frequent pair for one that never occurs.
MAX_BYTES = 2**31 - 1

LONGEST = MAX_TOKEN_BYTES // 4  # characters of a piece in training: of a longer one, a token could be too long to read
_STRETCH = re.compile(r"\S{100}|\s{100}")  # in every longer piece of a named pattern


class Settings(BaseModel, extra="forbid"):
    """The split pattern, the trainer, and how many texts rustbpe reads at a time."""

    pattern: Pattern = "qwen2"
    trainer: Literal["rustbpe", "tokenizers"] = "rustbpe"
    buffer_size: int = Field(8192, gt=0, le=1_000_000, strict=True)  # 24 bytes are allocated for each


def train(texts: Iterable[str], num_text: int, settings: Settings) -> Vocabulary:
    """A vocabulary of at most `num_text` tokens; the texts are read once, and their order does not matter.

    Raises ValueError if rustbpe is the trainer and the texts have more than MAX_BYTES.
    """
    train_ranks = _rustbpe if settings.trainer == "rustbpe" else _tokenizers
    short = _cut_long_pieces(texts, settings.pattern)
    longer = [token for token in train_ranks(short, num_text, settings) if len(token) > 1]
    return byte_level_vocabulary(longer, "bpe", "merge", settings.pattern)


def _cut_long_pieces(texts: Iterable[str], pattern: str) -> Iterator[str]:
    """The texts; where a piece is longer than LONGEST, its text is cut before it, inside it and after it."""
    find, named = regex.compile(pattern).finditer, pattern in PATTERNS.values()
    for text in texts:
        start = 0
        if len(text) > LONGEST and not (named and _STRETCH.search(text) is None):
            for first, end in (piece.span() for piece in find(text)):
                if end - first > LONGEST:
                    yield text[start:first]
                    yield from (text[i : min(i + LONGEST, end)] for i in range(first, end, LONGEST))
                    start = end
        yield text[start:]


def _rustbpe(texts: Iterable[str], num_text: int, settings: Settings) -> list[bytes]:
    """The tokens by rank; of equally frequent pairs, the one with the smaller ids is merged first."""
    tokenizer = rustbpe.Tokenizer()
    tokenizer.train_from_iterator(_countable(texts), num_text, settings.buffer_size, settings.pattern)
    return [bytes(token) for token, _ in sorted(tokenizer.get_mergeable_ranks(), key=lambda entry: entry[1])]


def _countable(texts: Iterable[str]) -> Iterator[str]:
    total = 0
    for text in texts:
        total += len(text) if text.isascii() else len(text.encode())
        if total > MAX_BYTES:
            raise ValueError(f"rustbpe cannot count over {MAX_BYTES:,} bytes of text: set train_tokenizer.max_bytes")
        yield text


def _tokenizers(texts: Iterable[str], num_text: int, settings: Settings) -> list[bytes]:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(settings.pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=num_text, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = tokenizer.get_vocab()
    return [byte_level_entry(piece)[0] for piece in sorted(vocabulary, key=vocabulary.__getitem__)]
