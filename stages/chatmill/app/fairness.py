"""How many tokens the same sentences take in different languages, relative to English.

A file of parallel sentences is a table, or JSON lines, of `language`, `key` and `text`. Sentences with the same key are
translations of each other.

    language  key   text
    en        rain  It will rain tomorrow.
    de        rain  Morgen wird es regnen.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from chatmill.datasets.formats.example import Reject, UnusableRowError, text_of
from chatmill.datasets.formats.row_readers import json_rows, table_rows
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer

ENGLISH = ("en", "eng", "eng_latn", "english")


class SentencePair(NamedTuple):
    """A sentence and its English translation."""

    text: str
    english: str


@dataclass(frozen=True, slots=True)
class LanguageCost:
    """Tokens and bytes of a language's sentences, and of their English translations."""

    sentences: int
    tokens: int
    bytes: int
    english_tokens: int
    english_bytes: int

    @property
    def tokens_per_sentence(self) -> float:
        """Mean over the sentences."""
        return self.tokens / self.sentences

    @property
    def tokens_per_byte(self) -> float:
        """Pooled over the sentences."""
        return self.tokens / self.bytes

    @property
    def sentence_ratio(self) -> float:
        """Tokens relative to the same sentences in English."""
        return self.tokens / self.english_tokens

    @property
    def byte_ratio(self) -> float:
        """Tokens per byte relative to the same sentences in English."""
        return self.tokens_per_byte / (self.english_tokens / self.english_bytes)


def read_parallel(file: Path) -> dict[str, list[SentencePair]]:
    """The sentences of each language. Raises ValueError with file and line where one has no English counterpart."""
    rows = list(_rows(file))
    english = {key: text for _, language, key, text in rows if language.lower() in ENGLISH}
    result: dict[str, list[SentencePair]] = {}
    for place, language, key, text in rows:
        if key not in english:
            raise ValueError(f"{place}: no sentence {key!r} in English to compare it with: add one, of language 'en'")
        result.setdefault(language, []).append(SentencePair(text, english[key]))
    if not result:
        raise ValueError(f"{file}: no sentences: expected rows of language, key and text")
    return result


def _rows(file: Path) -> Iterator[tuple[str, str, str, str]]:
    """Place, language, key and text of each row."""
    seen = set()
    for row in table_rows(file) if {".tsv", ".csv"} & set(file.suffixes) else json_rows(file):
        if isinstance(row, Reject):
            raise ValueError(f"{row.place}: {row.detail}")
        place, entry = row
        try:
            language, key, text = (text_of(entry, name) for name in ("language", "key", "text"))
        except UnusableRowError as error:
            raise ValueError(f"{place}: {error}") from error
        if not text.strip():
            raise ValueError(f"{place}: the sentence is empty")
        if (language, key) in seen:
            raise ValueError(f"{place}: sentence {key!r} occurs twice in {language}")
        seen.add((language, key))
        yield place, language, key, text


def language_costs(parallel: Mapping[str, Sequence[SentencePair]], tokenizer: ChatTokenizer) -> dict[str, LanguageCost]:
    """The cost of each language's sentences."""
    return {language: _cost(pairs, tokenizer) for language, pairs in parallel.items()}


def _cost(pairs: Sequence[SentencePair], tokenizer: ChatTokenizer) -> LanguageCost:
    sizes = []
    for texts in zip(*pairs, strict=True):
        sizes += [sum(map(len, tokenizer.encode(list(texts)))), sum(len(text.encode()) for text in texts)]
    return LanguageCost(len(pairs), *sizes)
