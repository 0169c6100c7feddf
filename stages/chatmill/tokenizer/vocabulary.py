"""What a tokenizer consists of, whatever file it stands in, and the fingerprint that tells two apart."""

import hashlib
import json
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import count, pairwise
from typing import Literal

Algorithm = Literal["lookup", "merge", "wordpiece", "viterbi"]
Pair = tuple[int, int]
NO_RANK = -1e6  # score of single bytes, controls and whatever else has no rank


class Kind(IntEnum):
    """What an id stands for."""

    NORMAL = 0
    CONTINUATION = 1  # only inside a word: its text follows other text of the same piece
    FALLBACK = 2  # one byte, for text that no other entry covers
    CONTROL = 3  # never made by text
    UNUSED = 4  # fills the vocabulary up to a multiple of 64


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer's content, in id order.

    `algorithm` says how a piece becomes ids: `lookup` (the whole piece, else its bytes), `merge` (pairs by rank),
    `wordpiece` (longest match first), `viterbi` (best sum of scores). `pattern` is the regular expression whose matches
    are the pieces; None where the algorithm takes the text as it is. `merges` are pairs of ids, by rank.
    """

    type: str
    algorithm: Algorithm
    pattern: str | None
    tokens: tuple[bytes, ...]  # exact bytes of each token; of a control or unused token, its name
    kinds: tuple[Kind, ...]
    scores: tuple[float, ...]  # float32; log-probabilities for viterbi, otherwise as `rank_scores` makes them
    merges: tuple[Pair, ...] = ()

    @cached_property
    def num_text(self) -> int:
        """How many ids text can produce; control tokens follow."""
        return sum(kind < Kind.CONTROL for kind in self.kinds)

    @cached_property
    def special(self) -> dict[str, int]:
        """Name to id of each control token."""
        return {self.tokens[i].decode(): i for i, kind in enumerate(self.kinds) if kind == Kind.CONTROL}

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of canonical JSON of all of it: equal wherever it was read from."""
        entries = [
            [token.hex(), int(kind), f"{score:.6g}"]
            for token, kind, score in zip(self.tokens, self.kinds, self.scores, strict=True)
        ]
        content = {
            "type": self.type,
            "pattern": self.pattern,
            "vocabulary": entries,
            "merges": self.merges,
            "controls": self.special,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def rank_scores(tokens: Sequence[bytes], kinds: Sequence[Kind], merges: Sequence[Pair] = ()) -> tuple[float, ...]:
    """-ln(rank + 1): the rank of the first merge that makes a token; without merges, its place among longer entries."""
    made: dict[bytes, int] = {}
    for rank, (left, right) in enumerate(merges):
        made.setdefault(tokens[left] + tokens[right], rank)
    places = count()
    scores = []
    for token, kind in zip(tokens, kinds, strict=True):
        rank = None
        if kind < Kind.CONTROL and len(token) > 1:
            rank = made.get(token) if merges else next(places)
        scores.append(NO_RANK if rank is None else float32(0.0 - math.log(rank + 1)))
    return tuple(scores)


def merges_by_rank(tokens: Sequence[bytes]) -> tuple[Pair, ...]:
    """The merges behind byte-level tokens in the order of their ranks: the two parts that lower ranks make of each.

    Raises ValueError where they make more than two: merging can never give that token.
    """
    ids: dict[bytes, int] = {token: i for i, token in enumerate(tokens) if len(token) == 1}
    merges = []
    for i, token in enumerate(tokens):
        if len(token) == 1:
            continue
        parts = _merge(token, ids)
        if len(parts) != 2 or token in ids:
            raise ValueError(f"token {i} {token!r} is not a merge of two earlier tokens, but of {len(parts)}: {parts}")
        merges.append((ids[parts[0]], ids[parts[1]]))
        ids[token] = i
    return tuple(merges)


def _merge(piece: bytes, ids: dict[bytes, int]) -> list[bytes]:
    parts = [piece[i : i + 1] for i in range(len(piece))]
    while len(parts) > 1:
        pairs = [ids.get(left + right) for left, right in pairwise(parts)]
        best = min((rank for rank in pairs if rank is not None), default=None)
        if best is None:
            break
        i = pairs.index(best)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def float32(value: float) -> float:
    """The nearest number that every format keeps exactly."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def bytes_and(longer: Iterable[bytes], type: str, algorithm: Algorithm, pattern: str) -> Vocabulary:
    """The text tokens of a byte-level tokenizer: the 256 bytes, then longer tokens by rank."""
    tokens = (*(bytes([byte]) for byte in range(256)), *longer)
    kinds = (Kind.NORMAL,) * len(tokens)
    merges = merges_by_rank(tokens) if algorithm == "merge" else ()
    return Vocabulary(type, algorithm, pattern, tokens, kinds, rank_scores(tokens, kinds, merges), merges)
