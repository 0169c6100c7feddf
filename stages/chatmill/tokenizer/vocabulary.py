"""What a tokenizer consists of, whatever file it stands in, and the fingerprint that tells two apart."""

import hashlib
import json
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Literal

Algorithm = Literal["lookup", "merge", "wordpiece", "viterbi"]


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
    scores: tuple[float, ...]  # log-probabilities for viterbi; otherwise -ln(rank + 1), -1e6 for bytes and controls
    merges: tuple[tuple[int, int], ...] = ()

    @property
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
