"""Vocabularies as tiktoken holds them: the ranks of byte strings, the ids of special names, and a pattern.

tiktoken looks a piece up as a whole, and else joins its bytes pair by pair, those first whose joint token has the least
rank. It has no list of merges: they are found back from the ranks.
"""

import re
from functools import lru_cache

import tiktoken

from chatmill.tokenizer.patterns import CHARACTERS
from chatmill.tokenizer.vocabulary import Kind, Vocabulary, merges_by_rank, rank_scores

MOST_GAPS = 4096  # ids without a name that are taken for unused ones
_OWN = re.compile(r"chatmill/(\w+)/(lookup|merge)/([0-9a-f]{64})")


@lru_cache(maxsize=1)
def refusal(vocabulary: Vocabulary) -> str | None:
    """Why tiktoken would give other ids than the vocabulary's own algorithm; None where it gives the same."""
    if vocabulary.algorithm in ("wordpiece", "viterbi"):
        return f"tiktoken joins bytes by rank and cannot express {vocabulary.algorithm}"
    if vocabulary.pattern is None:
        return "tiktoken joins bytes inside the pieces of a pattern, and this tokenizer has none"
    text = vocabulary.tokens[: vocabulary.num_text]
    if vocabulary.algorithm == "lookup":
        joined = next((token for token in text if len(token) == 2), None)
        if joined is not None and vocabulary.pattern != CHARACTERS:
            return f"tiktoken would join the bytes of {joined!r} inside pieces that are no entry"
        return None
    try:
        same = merges_by_rank(text) == vocabulary.merges
    except ValueError as error:
        return f"tiktoken would merge otherwise: {error}"
    return None if same else "tiktoken merges in the order of ids, and this tokenizer's merges have another order"


def encoding(vocabulary: Vocabulary) -> tiktoken.Encoding:
    """The same tokenizer as tiktoken's own object. Raises ValueError where there is none."""
    reason = refusal(vocabulary)
    if reason is not None:
        raise ValueError(reason)
    tokens, num_text = vocabulary.tokens, vocabulary.num_text
    return tiktoken.Encoding(
        name=encoding_name(vocabulary),
        pat_str=vocabulary.pattern,
        mergeable_ranks={token: i for i, token in enumerate(tokens[:num_text])},
        special_tokens={token.decode(): i for i, token in enumerate(tokens[num_text:], start=num_text)},
        explicit_n_vocab=len(tokens),
    )


def encoding_name(vocabulary: Vocabulary) -> str:
    """What `from_ranks` needs beside the ranks, in the one field of an encoding that is free."""
    return f"chatmill/{vocabulary.type}/{vocabulary.algorithm}/{vocabulary.fingerprint}"


def from_ranks(name: str, pattern: str, ranks: dict[bytes, int], special: dict[str, int]) -> Vocabulary:
    """The vocabulary in an encoding's four values: `encoding` inverted. Ids that have no name become unused.

    Raises ValueError where the values do not fit together, or are not those that the name was made for.
    """
    made = _OWN.fullmatch(name)
    type, algorithm, fingerprint = made.groups() if made else ("pretrained", "merge", None)
    tokens = _in_order(ranks, special)
    kinds = [Kind.NORMAL] * len(ranks)
    kinds += [Kind.UNUSED if token.startswith(b"<|unused_") else Kind.CONTROL for token in tokens[len(ranks) :]]
    merges = merges_by_rank(tokens[: len(ranks)]) if algorithm == "merge" else ()
    scores = rank_scores(tokens, kinds, merges)
    vocabulary = Vocabulary(type, algorithm, pattern, tuple(tokens), tuple(kinds), scores, merges)
    if fingerprint not in (None, vocabulary.fingerprint):
        raise ValueError("its content has another fingerprint than its name says: it is damaged, or was edited")
    return vocabulary


def _in_order(ranks: dict[bytes, int], special: dict[str, int]) -> list[bytes]:
    """All tokens by id: ranks from 0 without a gap, special names above them."""
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise ValueError("its ranks are not the numbers from 0, each once")
    missing = next((byte for byte in range(256) if bytes([byte]) not in ranks), None)
    if missing is not None:
        raise ValueError(f"it has no token for the byte {missing:#04x}")
    names = {i: name.encode() for name, i in special.items()}
    if len(names) < len(special) or min(names, default=len(ranks)) < len(ranks):
        raise ValueError("an id has two tokens")
    size = max(names, default=len(ranks) - 1) + 1
    if size - len(ranks) - len(names) > MOST_GAPS:
        raise ValueError(f"special ids up to {size - 1} above {len(ranks)} ranks")
    gaps = (i for i in range(len(ranks), size) if i not in names)
    names |= {i: f"<|unused_{k}|>".encode() for k, i in enumerate(gaps)}
    return [*sorted(ranks, key=ranks.__getitem__), *(names[i] for i in range(len(ranks), size))]
