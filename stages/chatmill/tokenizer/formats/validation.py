"""Checks that a vocabulary from a file can encode every text, without a crash or loss."""

import math

from chatmill.tokenizer.vocabulary.patterns import check_expression, check_pattern
from chatmill.tokenizer.vocabulary.preprocessing import open_steps, patterns_of
from chatmill.tokenizer.vocabulary.tokenizer_json import id_to_piece
from chatmill.tokenizer.vocabulary.vocabulary import MAX_TOKEN_BYTES, Kind, Vocabulary


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
        preprocess = open_steps(vocabulary.steps)
        if vocabulary.spelling == "marked" and " " in preprocess("a b"):
            raise ValueError("its preprocessing does not write spaces as U+2581")
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
    """Raise ValueError if a byte has no token, unless there is an unknown token."""
    entries = list(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
    single = {kind: {token for token, other in entries if other == kind and len(token) == 1} for kind in Kind}
    if fallbacks := vocabulary.kinds.count(Kind.FALLBACK):
        if fallbacks != 256 or len(single[Kind.FALLBACK]) != 256:
            raise ValueError("its byte fallback does not have each of the 256 bytes once")
        if b" " not in single[Kind.NORMAL]:
            raise ValueError("it has no token for a space, which would be decoded as U+2581")
    if fallbacks or Kind.UNKNOWN in vocabulary.kinds or (vocabulary.algorithm == "merge" and vocabulary.missing_bytes):
        return
    for kind in (Kind.NORMAL, Kind.CONTINUATION) if vocabulary.algorithm == "wordpiece" else (Kind.NORMAL,):
        if missing := [byte for byte in range(256) if bytes([byte]) not in single[kind]]:
            first = f"such as {missing[0]:#04x}"
            raise ValueError(f"{len(missing)} of the 256 bytes have no token, {first}: it cannot encode every text")
