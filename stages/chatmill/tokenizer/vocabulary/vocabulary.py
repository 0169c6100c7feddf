"""What a tokenizer consists of, whatever file it stands in, and the fingerprint that tells two apart."""

import hashlib
import json
import math
import struct
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import count, pairwise
from operator import itemgetter
from typing import Literal

Algorithm = Literal["lookup", "merge", "wordpiece", "viterbi"]
MergePair = tuple[int, int]
VOCAB_SIZE_MULTIPLE = 64  # of which every vocabulary's size is one
CONTINUING_SUBWORD_PREFIX = "##"  # before WordPiece's continuations, where its entries are text and not bytes
UNUSED_PREFIX = "<|unused_"  # how the names of unused ids begin
MAX_TOKEN_BYTES = 1024  # bytes of a token that is read from a file
NO_RANK = -1e6  # score of single bytes, controls and whatever else has no rank

_FLOAT32 = struct.Struct("<f")


class Kind(IntEnum):
    """What an id stands for."""

    NORMAL = 0
    CONTINUATION = 1  # only inside a word: its text follows other text of the same piece
    FALLBACK = 2  # one byte, for text that no other entry covers
    CONTROL = 3  # never made by text
    UNUSED = 4  # an id that stands for nothing
    UNKNOWN = 5  # text that no token covers, where there are no bytes to fall back on


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer's content, in id order.

    `algorithm` says how a piece becomes ids: `lookup` (the whole piece, else its bytes), `merge` (pairs by rank),
    `wordpiece` (longest match first), `viterbi` (best sum of scores). `pattern` is the regular expression whose matches
    are the pieces; None where the algorithm takes the text as it is. `merges` are pairs of ids, by rank.

    A tokenizer made elsewhere may change the text before, or cut it otherwise: `steps`, of chatmill.tokenizer.steps.
    """

    type: str
    algorithm: Algorithm
    pattern: str | None
    tokens: tuple[bytes, ...]  # exact bytes of each token; of a control or unused token, its name
    kinds: tuple[Kind, ...]
    scores: tuple[float, ...]  # float32; log-probabilities for viterbi, otherwise as `rank_scores` makes them
    merges: tuple[MergePair, ...] = ()
    steps: str | None = None

    @cached_property
    def text_ids(self) -> tuple[int, ...]:
        """The ids that text can produce, in order. In chatmill's own vocabularies control tokens follow them."""
        return tuple(i for i, kind in enumerate(self.kinds) if kind < Kind.CONTROL)

    @cached_property
    def num_text(self) -> int:
        """How many ids text can produce."""
        return len(self.text_ids)

    @property
    def spelling(self) -> Literal["bytes", "marked", "plain"]:
        """How files write tokens: in letters for bytes, as text with U+2581 for spaces, or as text."""
        if self.type == "sentencepiece":
            return "marked"
        return "plain" if self.algorithm == "wordpiece" and self.steps is not None else "bytes"

    @cached_property
    def lossless(self) -> bool:
        """Whether the tokens of a text are its bytes, whatever it says."""
        return self.steps is None and (Kind.UNKNOWN not in self.kinds or Kind.FALLBACK in self.kinds)

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
        if self.steps is not None:
            content["steps"] = self.steps
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def rank_scores(tokens: Sequence[bytes], kinds: Sequence[Kind], merges: Sequence[MergePair] = ()) -> tuple[float, ...]:
    """-ln(rank + 1): the rank of the first merge that makes a token; without merges, its place among longer entries."""
    rank_by_token: dict[bytes, int] = {}
    for place, (left, right) in enumerate(merges):
        rank_by_token.setdefault(tokens[left] + tokens[right], place)
    places = count()
    scores = []
    for token, kind in zip(tokens, kinds, strict=True):
        rank: int | None = None
        if kind < Kind.CONTROL and len(token) > 1:
            rank = rank_by_token.get(token) if merges else next(places)
        scores.append(NO_RANK if rank is None else float32(0.0 - math.log(rank + 1)))
    return tuple(scores)


def merges_by_rank(ranks: Mapping[bytes, int], *, trained: bool = False) -> tuple[MergePair, ...]:
    """The merges behind byte-level tokens in the order of their ranks: the two parts that lower ranks make of each.

    A token of which they make more than two has none: it is found by looking a whole piece up, and not by merging. Of
    `trained` tokens there is none such, so that most need no merging to be understood.
    """
    known: dict[bytes, int] = {token: i for token, i in ranks.items() if len(token) == 1}
    merges = []
    for token, i in sorted(ranks.items(), key=itemgetter(1)):
        if len(token) > 1:
            cuts = range(1, len(token)) if trained else ()
            ways = [(token[:cut], token[cut:]) for cut in cuts if token[:cut] in known and token[cut:] in known]
            parts = ways[0] if len(ways) == 1 else byte_pair_merge(token, known)
            if len(parts) == 2:
                merges.append((known[parts[0]], known[parts[1]]))
            known[token] = i
    return tuple(merges)


def drop_unreachable_merges(merges: tuple[MergePair, ...], ranks: Mapping[bytes, int]) -> tuple[MergePair, ...]:
    """Merges less those that never happen, where they follow the ranks of what they make.

    Some writers list every pair whose joint token there is; but only the two parts that lower ranks leave ever meet.
    """
    tokens = {i: token for token, i in ranks.items()}
    made = [ranks[tokens[left] + tokens[right]] for left, right in merges]
    needed = merges_by_rank(ranks)
    return needed if made == sorted(made) and set(needed) <= set(merges) else merges


def byte_pair_merge(pretoken: bytes, ranks: Mapping[bytes, int]) -> list[bytes]:
    """The bytes of a piece joined pair by pair, those first whose joint token has the least rank."""
    parts = [pretoken[i : i + 1] for i in range(len(pretoken))]
    pairs = [ranks.get(left + right, math.inf) for left, right in pairwise(parts)]
    while pairs and (best := min(pairs)) < math.inf:
        i = pairs.index(best)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
        del pairs[i]
        for place in range(max(i - 1, 0), min(i + 1, len(pairs))):
            pairs[place] = ranks.get(parts[place] + parts[place + 1], math.inf)
    return parts


def unused_names(taken: Container[bytes]) -> Iterator[bytes]:
    """Names for unused ids, without end; none of those that are taken."""
    return (name for k in count() if (name := f"{UNUSED_PREFIX}{k}|>".encode()) not in taken)


def check_lengths(tokens: Iterable[bytes]) -> None:
    """Raise ValueError for a token that is empty, or so long that it would take ages to understand."""
    if any(not 0 < len(token) <= MAX_TOKEN_BYTES for token in tokens):
        raise ValueError(f"a token is empty, or has over {MAX_TOKEN_BYTES} bytes")


def float32(value: float) -> float:
    """The nearest number that every format keeps exactly."""
    number: float = _FLOAT32.unpack(_FLOAT32.pack(value))[0]
    return number


def byte_level_vocabulary(longer: Iterable[bytes], type: str, algorithm: Algorithm, pattern: str) -> Vocabulary:
    """The text tokens of a byte-level tokenizer: the 256 bytes, then longer tokens by rank, as training made them."""
    tokens = (*(bytes([byte]) for byte in range(256)), *longer)
    kinds = (Kind.NORMAL,) * len(tokens)
    ranks = {token: i for i, token in enumerate(tokens)}
    assert len(ranks) == len(tokens), "a token is there twice"
    merges = merges_by_rank(ranks, trained=True) if algorithm == "merge" else ()
    return Vocabulary(type, algorithm, pattern, tokens, kinds, rank_scores(tokens, kinds, merges), merges)
