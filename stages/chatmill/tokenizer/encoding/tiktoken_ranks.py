"""Vocabularies as tiktoken holds them: the ranks of byte strings, the ids of special tokens, and a pattern.

tiktoken looks up a complete piece; if it is no token, its bytes are merged pair by pair, lowest rank first. It has
no list of merges: they are derived from the ranks.
"""

import re
from functools import lru_cache

import tiktoken

from chatmill.tokenizer.vocabulary.patterns import CHARACTERS
from chatmill.tokenizer.vocabulary.vocabulary import (
    TEXT_KINDS,
    UNUSED_PREFIX,
    Algorithm,
    Kind,
    Vocabulary,
    check_lengths,
    merges_by_rank,
    rank_scores,
    unused_names,
)

MOST_GAPS = 4096  # ids without a token that are accepted as unused
_OWN = re.compile(r"chatmill/(\w+)/(lookup|merge)/([0-9a-f]{64})")


@lru_cache(maxsize=1)
def tiktoken_unsupported_reason(vocabulary: Vocabulary) -> str | None:
    """Why tiktoken would give other ids than the vocabulary's own algorithm; None if they are the same."""
    if vocabulary.algorithm in ("wordpiece", "viterbi"):
        return f"tiktoken merges bytes by rank and cannot express {vocabulary.algorithm}"
    if vocabulary.pattern is None:
        return "tiktoken needs a split pattern, and this tokenizer has none"
    if vocabulary.steps is not None:
        return "tiktoken does not normalise text or split it in several steps, and this tokenizer does"
    if vocabulary.added_tokens:
        return f"tiktoken does not find {vocabulary.added_tokens[0].content!r} in text before it merges"
    ranks = ranks_of(vocabulary)
    if any(bytes([byte]) not in ranks for byte in range(256)):
        return "tiktoken needs a token for every byte"
    if vocabulary.algorithm == "lookup":
        joined = next((token for token in ranks if len(token) == 2), None)
        if joined is not None and vocabulary.pattern != CHARACTERS:
            return f"tiktoken would merge the bytes of {joined!r} inside words that are not in the vocabulary"
        return None
    if merges_by_rank(ranks) != vocabulary.merges:
        return "tiktoken merges in the order of ids, and this tokenizer's merges have another order"
    return None


def ranks_of(vocabulary: Vocabulary) -> dict[bytes, int]:
    """The bytes of each text token and its id, which is its rank."""
    return {vocabulary.tokens[i]: i for i in vocabulary.text_ids}


def to_tiktoken_encoding(vocabulary: Vocabulary) -> tiktoken.Encoding:
    """The tokenizer as a tiktoken.Encoding. Raises ValueError if tiktoken cannot express it."""
    reason = tiktoken_unsupported_reason(vocabulary)
    if reason is not None:
        raise ValueError(reason)
    assert vocabulary.pattern is not None, "checked above"
    return tiktoken.Encoding(
        name=encoding_name(vocabulary),
        pat_str=vocabulary.pattern,
        mergeable_ranks=ranks_of(vocabulary),
        special_tokens=special_tokens_of(vocabulary),
        explicit_n_vocab=len(vocabulary.tokens),
    )


def special_tokens_of(vocabulary: Vocabulary) -> dict[str, int]:
    """Name to id of each control and unused token."""
    kinds = enumerate(vocabulary.kinds)
    return {vocabulary.tokens[i].decode(): i for i, kind in kinds if kind not in TEXT_KINDS}


def encoding_name(vocabulary: Vocabulary) -> str:
    """The encoding's name, its only free field, with what `from_ranks` needs beside the ranks."""
    return f"chatmill/{vocabulary.type}/{vocabulary.algorithm}/{vocabulary.fingerprint}"


def from_ranks(name: str, pattern: str, ranks: dict[bytes, int], special: dict[str, int]) -> Vocabulary:
    """The vocabulary in an encoding's four values: the inverse of `to_tiktoken_encoding`.

    Ids without a token become unused.

    Raises ValueError if the values are inconsistent, or do not match the fingerprint in the name.
    """
    match = _OWN.fullmatch(name)
    type, fingerprint = (match[1], match[3]) if match else ("pretrained", None)
    algorithm: Algorithm = "lookup" if match and match[2] == "lookup" else "merge"
    tokens, kinds = _in_order(ranks, special)
    merges = merges_by_rank(ranks) if algorithm == "merge" else ()
    scores = rank_scores(tokens, kinds, merges)
    vocabulary = Vocabulary(type, algorithm, pattern, tokens, kinds, scores, merges)
    if fingerprint not in (None, vocabulary.fingerprint):
        raise ValueError("its fingerprint differs from the one in its name: it is damaged or was edited")
    return vocabulary


def _in_order(ranks: dict[bytes, int], special: dict[str, int]) -> tuple[tuple[bytes, ...], tuple[Kind, ...]]:
    """All tokens by id, and their kinds; an empty token, which no text gives, is an unused id."""
    ranks = {token: i for token, i in ranks.items() if token}
    missing = next((byte for byte in range(256) if bytes([byte]) not in ranks), None)
    if missing is not None:
        raise ValueError(f"it has no token for the byte {missing:#04x}")
    check_lengths(ranks)
    entries = {i: (token, Kind.NORMAL) for token, i in ranks.items()}
    for name, i in special.items():
        if i in entries:
            raise ValueError(f"the id {i} has two tokens, {entries[i][0]!r} and {name!r}")
        entries[i] = name.encode(), Kind.UNUSED if name.startswith(UNUSED_PREFIX) else Kind.CONTROL
    if len(entries) < len(ranks) + len(special) or min(entries) < 0:
        raise ValueError("an id has two tokens, or is negative")
    gaps = [i for i in range(max(entries) + 1) if i not in entries] if max(entries) < len(entries) + MOST_GAPS else None
    if gaps is None or len(gaps) > MOST_GAPS:
        raise ValueError(f"it has ids up to {max(entries)} for {len(entries)} tokens: too many ids without a token")
    names = unused_names({name.encode() for name in special})
    entries |= {i: (next(names), Kind.UNUSED) for i in gaps}
    tokens, kinds = zip(*(entries[i] for i in range(len(entries))), strict=True)
    return tokens, kinds
