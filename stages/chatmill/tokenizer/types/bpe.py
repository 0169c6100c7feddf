"""Byte-level BPE: starting from bytes, the most frequent neighbours within a piece are joined again and again."""

from collections.abc import Iterable
from typing import Literal

import rustbpe
from pydantic import BaseModel
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from chatmill.tokenizer.patterns import Pattern
from chatmill.tokenizer.tokenizer_json import byte_level_entry
from chatmill.tokenizer.vocabulary import Vocabulary, bytes_and

MINIMUM = 256  # text tokens
EXACT = True  # fewer text tokens than asked are an error


class Settings(BaseModel, extra="forbid"):
    """How text is cut into pieces, and who counts."""

    pattern: Pattern = "qwen2"
    trainer: Literal["rustbpe", "tokenizers"] = "rustbpe"


def train(texts: Iterable[str], num_text: int, settings: Settings) -> Vocabulary:
    """At most `num_text` tokens, by rank."""
    learn = _rustbpe if settings.trainer == "rustbpe" else _tokenizers
    longer = [token for token in learn(texts, num_text, settings.pattern) if len(token) > 1]
    return bytes_and(longer, "bpe", "merge", settings.pattern)


def _rustbpe(texts: Iterable[str], num_text: int, pattern: str) -> list[bytes]:
    """Ties go to the smaller pair; two merges may make the same bytes, of which the first counts."""
    tokenizer = rustbpe.Tokenizer()
    tokenizer.train_from_iterator(iter(texts), num_text, pattern=pattern)
    ranks = sorted(tokenizer.get_mergeable_ranks(), key=lambda entry: entry[1])
    return list(dict.fromkeys(bytes(token) for token, _ in ranks))


def _tokenizers(texts: Iterable[str], num_text: int, pattern: str) -> list[bytes]:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=num_text, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = tokenizer.get_vocab()
    return [byte_level_entry(piece)[0] for piece in sorted(vocabulary, key=vocabulary.__getitem__)]
