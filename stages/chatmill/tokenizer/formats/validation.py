"""Whether a vocabulary that was read from a file can encode every text without end, crash or loss."""

import math
import re
import sys
import unicodedata
from functools import lru_cache

import regex

from chatmill.tokenizer.vocabulary.patterns import (
    PATTERN_SAMPLE,
    PATTERNS,
    bounded,
    oniguruma_pretokens,
    tiktoken_pretokens,
    unbounded_atoms,
)
from chatmill.tokenizer.vocabulary.preprocessing import Preprocessor, patterns_of
from chatmill.tokenizer.vocabulary.tokenizer_json import id_to_piece
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary, check_lengths

MAX_PATTERN = 2000  # characters
MAX_UNBOUNDED_QUANTIFIERS = 3  # `+` and `*` in one alternative: with more of them a long run of blanks takes ages
SPELLINGS = {"lookup": {"bytes"}, "merge": {"bytes", "marked"}, "wordpiece": {"bytes", "plain"}, "viterbi": {"marked"}}


def check_vocabulary(vocabulary: Vocabulary) -> None:
    """Raise ValueError where it is not sound."""
    _check_fields(vocabulary)
    _check_tokens(vocabulary)
    _check_bytes(vocabulary)
    _check_merges(vocabulary)
    if vocabulary.steps is not None:
        run = Preprocessor(vocabulary.steps).run
        if vocabulary.spelling == "marked" and any(" " in stretch for stretch in run("a b")):
            raise ValueError("its steps leave blanks as they are, where U+2581 should stand for them")
        for pattern in patterns_of(vocabulary.steps):
            check_expression(pattern)
    if vocabulary.pattern is not None:
        check_pattern(vocabulary.pattern)
    if vocabulary.algorithm == "wordpiece" and vocabulary.steps is None:
        _check_bounded(vocabulary.pattern or "")


def _check_fields(vocabulary: Vocabulary) -> None:
    if vocabulary.spelling not in SPELLINGS.get(vocabulary.algorithm, ()):
        raise ValueError(f"no tokenizer of type {vocabulary.type!r:.40} works by {vocabulary.algorithm!r:.40}")
    if vocabulary.pattern is None and vocabulary.algorithm == "lookup":
        raise ValueError("it names no pattern")
    if vocabulary.spelling == "marked" and vocabulary.pattern is not None:
        raise ValueError("its pieces have U+2581 for blanks, and yet it names a pattern")
    unknown, unused = vocabulary.kinds.count(Kind.UNKNOWN), vocabulary.kinds.count(Kind.UNUSED)
    if unknown > 1 or (unknown and vocabulary.spelling == "bytes"):
        raise ValueError("it has an id for unknown text where there is none, or two")
    if vocabulary.algorithm == "viterbi" and not unknown and not unused:
        raise ValueError("it has no id for unknown text, and none to spare")
    if not all(math.isfinite(score) for score in vocabulary.scores):
        raise ValueError("a score is no finite number")


def _check_tokens(vocabulary: Vocabulary) -> None:
    """Each token is there once, by its bytes and by how files spell it."""
    check_lengths(vocabulary.tokens)
    seen: dict[object, int] = {}
    for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)):
        spelt = vocabulary.spelling != "bytes" or kind >= Kind.CONTROL
        try:
            key = id_to_piece(vocabulary, i) if spelt else (token, kind)
        except UnicodeDecodeError as error:
            raise ValueError(f"its token {i}, {token!r:.80}, is no UTF-8") from error
        if kind >= Kind.CONTROL and len(token.decode()) == 1:
            raise ValueError(f"the name of its token {i}, {token!r}, is one character, as text may have")
        if seen.setdefault(key, i) != i:
            raise ValueError(f"its tokens {seen[key]} and {i} are the same, {token!r:.80}")
        if kind == Kind.CONTINUATION and vocabulary.algorithm != "wordpiece":
            raise ValueError(f"its token {i}, {token!r:.80}, continues words, which only WordPiece does")


def _check_bytes(vocabulary: Vocabulary) -> None:
    """Every byte has a token, unless there is one for unknown text."""
    single: dict[Kind, set[bytes]] = {kind: set() for kind in Kind}
    for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True):
        if len(token) == 1:
            single[kind].add(token)
    if vocabulary.spelling == "marked" and any(
        b"\0" in token for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True) if kind != Kind.FALLBACK
    ):
        raise ValueError("a token holds the character 0, which SentencePiece does not take")
    fallbacks = vocabulary.kinds.count(Kind.FALLBACK)
    if fallbacks and (fallbacks != 256 or len(single[Kind.FALLBACK]) != 256 or vocabulary.spelling != "marked"):
        raise ValueError("it falls back on some bytes, and not on each once")
    if fallbacks and b" " not in single[Kind.NORMAL]:
        raise ValueError("it has no token for a blank, which would come back as U+2581")
    if fallbacks or Kind.UNKNOWN in vocabulary.kinds:
        return
    for kind in (Kind.NORMAL, Kind.CONTINUATION) if vocabulary.algorithm == "wordpiece" else (Kind.NORMAL,):
        if len(single[kind]) < 256:
            raise ValueError(f"{256 - len(single[kind])} of the 256 bytes have no token: it cannot take every text")


def _check_merges(vocabulary: Vocabulary) -> None:
    if vocabulary.merges and vocabulary.algorithm != "merge":
        raise ValueError("it has merges, and does not work by them")
    texts, size = {vocabulary.tokens[i] for i in vocabulary.text_ids if not vocabulary.kinds[i]}, len(vocabulary.tokens)
    for rank, (left, right) in enumerate(vocabulary.merges):
        if max(left, right) >= size or vocabulary.kinds[left] or vocabulary.kinds[right]:
            raise ValueError(f"its merge {rank} is not of two text tokens")
        if vocabulary.tokens[left] + vocabulary.tokens[right] not in texts:
            raise ValueError(f"its merge {rank} makes no token")
    if len(set(vocabulary.merges)) < len(vocabulary.merges):
        raise ValueError("a merge is there twice")


@lru_cache
def check_pattern(pattern: str) -> None:
    """Raise ValueError for a pattern that loses text, that engines disagree about, or that may take ages."""
    if pattern in PATTERNS.values():
        return
    check_expression(pattern)
    pieces = [match[0] for match in regex.finditer(pattern, PATTERN_SAMPLE)]
    if not all(pieces):
        raise ValueError(f"its pattern {pattern!r:.80} matches the empty text")
    if "".join(pieces) != PATTERN_SAMPLE or any(not regex.match(pattern, character) for character in _characters()):
        raise ValueError(f"its pattern {pattern!r:.80} leaves characters out")
    for name, cut in {"tiktoken": tiktoken_pretokens, "Oniguruma": oniguruma_pretokens}.items():
        if cut(pattern) != pieces:
            raise ValueError(f"{name} cuts text differently by its pattern {pattern!r:.80} than `regex`")


def check_expression(pattern: str) -> None:
    """Raise ValueError for what is no regular expression, or one that may take ages on some text."""
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"its pattern has over {MAX_PATTERN} characters")
    if re.search(r"\\[0-9gkK]|\(\?(?![:=!>i-]|<[=!])", pattern):
        raise ValueError(f"its pattern {pattern!r:.80} refers to groups, or has some of an unknown kind")
    try:
        regex.compile(pattern)
        oniguruma_pretokens(pattern)
    except Exception as error:  # tokenizers raises no narrower one
        raise ValueError(f"its pattern {pattern!r:.80} is no regular expression: {error}") from error
    if max(map(len, unbounded_atoms(pattern)), default=0) > MAX_UNBOUNDED_QUANTIFIERS:
        raise ValueError(
            f"its pattern {pattern!r:.80} repeats over {MAX_UNBOUNDED_QUANTIFIERS} things in one alternative"
        )


def _check_bounded(pattern: str) -> None:
    """WordPiece gives pieces of over 100 bytes up; `bounded` makes patterns that have none."""
    most = [int(count) for count in re.findall(r"(\d+)\}", pattern)]
    if bounded(pattern) != pattern or max(most, default=0) > 22:
        raise ValueError(f"its pattern {pattern!r:.80} has pieces of any length")


@lru_cache
def _characters() -> list[str]:
    """A character of each of Unicode's categories that text may have."""
    found: dict[str, str] = {}
    for code in range(sys.maxunicode + 1):
        found.setdefault(unicodedata.category(chr(code)), chr(code))
    return [character for category, character in found.items() if category != "Cs"]
