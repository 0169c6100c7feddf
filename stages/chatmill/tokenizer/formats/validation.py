"""Check that a vocabulary from a file can encode every text in bounded time, without a crash or loss."""

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
    check_time,
    known_patterns,
    oniguruma_pretokens,
    tiktoken_pretokens,
    unbounded_atoms,
)
from chatmill.tokenizer.vocabulary.preprocessing import Preprocessor, patterns_of
from chatmill.tokenizer.vocabulary.tokenizer_json import id_to_piece
from chatmill.tokenizer.vocabulary.vocabulary import TEXT_KINDS, Kind, Vocabulary, check_lengths

MAX_PATTERN = 2000  # characters
MAX_UNBOUNDED_QUANTIFIERS = 3  # `+` and `*` in one alternative: with more, a long run of spaces takes very long
SPELLINGS = {"lookup": {"bytes"}, "merge": {"bytes", "marked"}, "wordpiece": {"bytes", "plain"}, "viterbi": {"marked"}}


def check_vocabulary(vocabulary: Vocabulary) -> None:
    """Raise ValueError if the vocabulary cannot encode every text safely."""
    _check_fields(vocabulary)
    _check_tokens(vocabulary)
    _check_bytes(vocabulary)
    _check_merges(vocabulary)
    if vocabulary.steps is not None:
        run = Preprocessor(vocabulary.steps).run
        if vocabulary.spelling == "marked" and any(" " in stretch for stretch in run("a b")):
            raise ValueError("its preprocessing does not write spaces as U+2581")
        for pattern in patterns_of(vocabulary.steps):
            check_expression(pattern)
    if vocabulary.pattern is not None:
        check_pattern(vocabulary.pattern)
    if vocabulary.algorithm == "wordpiece" and vocabulary.steps is None:
        _check_bounded(vocabulary.pattern or "")


def _check_fields(vocabulary: Vocabulary) -> None:
    if vocabulary.spelling not in SPELLINGS.get(vocabulary.algorithm, ()):
        raise ValueError(f"type {vocabulary.type!r:.40} does not support algorithm {vocabulary.algorithm!r:.40}")
    if vocabulary.pattern is None and vocabulary.algorithm == "lookup":
        raise ValueError("it has no split pattern")
    if vocabulary.spelling == "marked" and vocabulary.pattern is not None:
        raise ValueError("it has a split pattern, although its pieces write spaces as U+2581")
    unknown, unused = vocabulary.kinds.count(Kind.UNKNOWN), vocabulary.kinds.count(Kind.UNUSED)
    if unknown > 1 or (unknown and vocabulary.spelling == "bytes"):
        raise ValueError("it has an unknown token that byte-level types do not have, or several")
    if vocabulary.algorithm == "viterbi" and not unknown and not unused:
        raise ValueError("it has neither an unknown token nor an unused id")
    if not all(math.isfinite(score) for score in vocabulary.scores):
        raise ValueError("a score is not a finite number")


def _check_tokens(vocabulary: Vocabulary) -> None:
    """Raise ValueError if a token is a duplicate, by its bytes or as files write it."""
    check_lengths(vocabulary.tokens)
    seen: dict[object, int] = {}
    for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)):
        is_text = vocabulary.spelling != "bytes" or kind >= Kind.CONTROL
        try:
            key = id_to_piece(vocabulary, i) if is_text else (token, kind)
        except UnicodeDecodeError as error:
            raise ValueError(f"its token {i}, {token!r:.80}, is not UTF-8") from error
        if kind not in TEXT_KINDS and len(token.decode()) == 1:
            raise ValueError(f"the name of its token {i}, {token!r}, is a single character, which text may contain")
        if seen.setdefault(key, i) != i:
            raise ValueError(f"its tokens {seen[key]} and {i} are the same, {token!r:.80}")
        if kind == Kind.CONTINUATION and vocabulary.algorithm != "wordpiece":
            raise ValueError(f"its token {i}, {token!r:.80}, is a continuation, which only WordPiece supports")


def _check_bytes(vocabulary: Vocabulary) -> None:
    """Raise ValueError if a byte has no token, unless there is an unknown token."""
    single: dict[Kind, set[bytes]] = {kind: set() for kind in Kind}
    for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True):
        if len(token) == 1:
            single[kind].add(token)
    if vocabulary.spelling == "marked" and any(
        b"\0" in token for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True) if kind != Kind.FALLBACK
    ):
        raise ValueError("a token contains the character U+0000, which SentencePiece does not support")
    fallbacks = vocabulary.kinds.count(Kind.FALLBACK)
    if fallbacks and (fallbacks != 256 or len(single[Kind.FALLBACK]) != 256 or vocabulary.spelling != "marked"):
        raise ValueError("its byte fallback does not have each of the 256 bytes once")
    if fallbacks and b" " not in single[Kind.NORMAL]:
        raise ValueError("it has no token for a space, which would be decoded as U+2581")
    if fallbacks or Kind.UNKNOWN in vocabulary.kinds:
        return
    for kind in (Kind.NORMAL, Kind.CONTINUATION) if vocabulary.algorithm == "wordpiece" else (Kind.NORMAL,):
        if len(single[kind]) < 256:
            texts = [*map(chr, range(0x20, 0x7F)), "é", "中", "🙂", *map(chr, range(256))]
            lost = [text for text in texts if any(bytes([byte]) not in single[kind] for byte in text.encode())]
            example = f", such as {lost[0]!r}" if lost else ""
            raise ValueError(
                f"{256 - len(single[kind])} of the 256 bytes have no token: it cannot encode every text{example}"
            )


def _check_merges(vocabulary: Vocabulary) -> None:
    if vocabulary.merges and vocabulary.algorithm != "merge":
        raise ValueError(f"it has merges, which the algorithm {vocabulary.algorithm!r} does not use")
    texts, size = {vocabulary.tokens[i] for i in vocabulary.text_ids if not vocabulary.kinds[i]}, len(vocabulary.tokens)
    for rank, (left, right) in enumerate(vocabulary.merges):
        if max(left, right) >= size or vocabulary.kinds[left] or vocabulary.kinds[right]:
            raise ValueError(f"its merge {rank} is not of two text tokens")
        if vocabulary.tokens[left] + vocabulary.tokens[right] not in texts:
            raise ValueError(f"its merge {rank} makes no token")
    if len(set(vocabulary.merges)) < len(vocabulary.merges):
        raise ValueError("it has a merge twice")


@lru_cache
def check_pattern(pattern: str) -> None:
    """Raise ValueError for a pattern that loses text, that engines disagree about, or that may take very long."""
    if pattern in PATTERNS.values():
        return
    check_expression(pattern)
    pieces = [match[0] for match in regex.finditer(pattern, PATTERN_SAMPLE)]
    if not all(pieces):
        raise ValueError(f"its pattern {pattern!r:.80} matches the empty string")
    if "".join(pieces) != PATTERN_SAMPLE or any(not regex.match(pattern, character) for character in _characters()):
        raise ValueError(f"its pattern {pattern!r:.80} does not match every character")
    for name, cut in {"tiktoken": tiktoken_pretokens, "Oniguruma": oniguruma_pretokens}.items():
        if cut(pattern) != pieces:
            raise ValueError(f"{name} and `regex` split text differently with its pattern {pattern!r:.80}")


def check_expression(pattern: str) -> None:
    """Raise ValueError for an invalid regular expression, or one that may take very long on some text."""
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"its pattern has over {MAX_PATTERN} characters")
    if re.search(r"\\[0-9gkK]|\(\?(?![:=!>i-]|<[=!])", pattern):
        raise ValueError(f"its pattern {pattern!r:.80} refers to groups, or has groups of an unsupported kind")
    try:
        regex.compile(pattern)
        oniguruma_pretokens(pattern)
    except Exception as error:  # tokenizers raises no narrower one
        raise ValueError(f"its pattern {pattern!r:.80} is not a regular expression: {error}") from error
    if pattern not in known_patterns():
        try:
            check_time(pattern)
        except ValueError as error:
            raise ValueError(f"its pattern {pattern!r:.80} is refused: {error}") from error
    if max(map(len, unbounded_atoms(pattern)), default=0) > MAX_UNBOUNDED_QUANTIFIERS:
        raise ValueError(
            f"its pattern {pattern!r:.80} has over {MAX_UNBOUNDED_QUANTIFIERS} unbounded quantifiers in one alternative"
        )


def _check_bounded(pattern: str) -> None:
    """Raise ValueError if pieces may have over 100 bytes, which WordPiece does not encode; `bounded` limits them."""
    most = [int(count) for count in re.findall(r"(\d+)\}", pattern)]
    if bounded(pattern) != pattern or max(most, default=0) > 22:
        raise ValueError(f"its pattern {pattern!r:.80} allows pieces of over 100 bytes")


@lru_cache
def _characters() -> list[str]:
    by_category: dict[str, str] = {}
    for code in range(sys.maxunicode + 1):
        by_category.setdefault(unicodedata.category(chr(code)), chr(code))
    return [character for category, character in by_category.items() if category != "Cs"]
