"""Checks that a vocabulary from a file can encode every text, without a crash or loss."""

import math

from chatmill.tokenizer.vocabulary.patterns import check_expression, check_pattern
from chatmill.tokenizer.vocabulary.preprocessing import patterns_of
from chatmill.tokenizer.vocabulary.vocabulary import MAX_TOKEN_BYTES, Kind, Vocabulary, id_to_piece


def check_vocabulary(vocabulary: Vocabulary) -> None:
    """Raise ValueError if the vocabulary cannot encode every text, or if two of its tokens are the same."""
    if not all(map(math.isfinite, vocabulary.scores)):
        raise ValueError("a score is not a finite number")
    _check_tokens(vocabulary)
    _check_bytes(vocabulary)
    for rank, pair in enumerate(vocabulary.merges):
        if any(vocabulary.kinds[i] for i in pair):
            raise ValueError(f"its merge {rank} is not of two text tokens")
    if vocabulary.steps is not None:
        for pattern in patterns_of(vocabulary.steps):
            check_expression(pattern)
    if vocabulary.pattern is not None:
        check_pattern(vocabulary.pattern)


def _check_tokens(vocabulary: Vocabulary) -> None:
    """Raise ValueError if a token is a duplicate, by its bytes or as files write it."""
    seen: dict[object, int] = {}
    for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)):
        if not 0 < len(token) <= MAX_TOKEN_BYTES:
            raise ValueError(f"its token {i} is empty, or has over {MAX_TOKEN_BYTES} bytes")
        is_text = vocabulary.spelling != "bytes" or kind >= Kind.CONTROL
        key = id_to_piece(vocabulary, i) if is_text else (token, kind)
        if seen.setdefault(key, i) != i:
            raise ValueError(f"its tokens {seen[key]} and {i} are the same, {token!r:.80}")


def _check_bytes(vocabulary: Vocabulary) -> None:
    """Raise ValueError if a byte has no token; byte-level BPE may leave out some, and another have an unknown token."""
    single: dict[Kind, set[bytes]] = {kind: set() for kind in Kind}
    for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True):
        if len(token) == 1:
            single[kind].add(token)
    if Kind.FALLBACK in vocabulary.kinds:
        if len(single[Kind.FALLBACK]) != 256:
            raise ValueError("its byte fallback does not have each of the 256 bytes")
        if b" " not in single[Kind.NORMAL]:
            raise ValueError("it has no token for a space, which would be decoded as U+2581")
    elif Kind.UNKNOWN not in vocabulary.kinds and not (vocabulary.algorithm == "merge" and vocabulary.missing_bytes):
        needed = (Kind.NORMAL, Kind.CONTINUATION) if vocabulary.algorithm == "wordpiece" else (Kind.NORMAL,)
        if missing := 256 - min(len(single[kind]) for kind in needed):
            raise ValueError(f"{missing} of the 256 bytes have no token: it cannot encode every text")
