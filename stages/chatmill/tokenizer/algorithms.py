"""How text becomes ids, written to be read: what every fast tokenizer of the same vocabulary must agree with.

Text is cut into the matches of the vocabulary's pattern, and one algorithm turns each piece into ids. Without a pattern
the text is taken as it is; there U+2581 stands for a space inside the tokens, so in text it is a piece of its own that
no token covers.
"""

import struct
from itertools import pairwise

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from chatmill.tokenizer.vocabulary import Kind, Vocabulary

WHOLE = "\u2581|[^\u2581]+"
UNKNOWN_PENALTY = 10.0  # what a character that no token covers costs below the least score, as in google/sentencepiece

_FLOAT32 = struct.Struct("<f")


class Encoder:
    """Encodes text by the algorithm that the vocabulary names. Slow."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._split = Split(Regex(vocabulary.pattern or WHOLE), "removed", invert=True)
        self._whole = vocabulary.pattern is None
        self._scores = vocabulary.scores
        ids: dict[Kind, dict[bytes, int]] = {kind: {} for kind in Kind}
        for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)):
            ids[kind][token] = index
        self._normal, self._continuation = ids[Kind.NORMAL], ids[Kind.CONTINUATION]
        self._byte = [(ids[Kind.FALLBACK] or self._normal).get(bytes([byte])) for byte in range(256)]
        self._longest = max(map(len, vocabulary.tokens))
        self._least = min((self._scores[index] for index in self._normal.values()), default=0.0)
        self._merges = {
            pair: (rank, self._normal[vocabulary.tokens[pair[0]] + vocabulary.tokens[pair[1]]])
            for rank, pair in enumerate(vocabulary.merges)
        }
        self._algorithm = {
            "lookup": self._lookup,
            "merge": self._merge,
            "wordpiece": self._wordpiece,
            "viterbi": self._viterbi,
        }[vocabulary.algorithm]

    def encode(self, text: str) -> list[int]:
        """The ids of text; never a control id."""
        return [index for piece, _ in self._split.pre_tokenize_str(text) for index in self._algorithm(piece)]

    def _lookup(self, piece: str) -> list[int]:
        """The whole piece, else its bytes."""
        data = piece.encode()
        return [self._normal[data]] if data in self._normal else [self._byte[byte] for byte in data]

    def _merge(self, piece: str) -> list[int]:
        """The whole piece, else its bytes (without a pattern: characters) joined pair by pair, the least rank first."""
        if self._whole:
            ids = [index for character in piece for index in self._lookup(character)]
        else:
            ids = self._lookup(piece)
        while len(ids) > 1:
            (_, merged), place = min(
                (self._merges.get(pair, (len(self._merges), -1)), place) for place, pair in enumerate(pairwise(ids))
            )
            if merged < 0:
                break
            ids[place : place + 2] = [merged]
        return ids

    def _wordpiece(self, piece: str) -> list[int]:
        """From the left, always the longest entry: the first one initial, the others continuations."""
        data, ids, entries = piece.encode(), [], self._normal
        while data:
            length = next(n for n in range(min(len(data), self._longest), 0, -1) if data[:n] in entries)
            ids.append(entries[data[:length]])
            data, entries = data[length:], self._continuation
        return ids

    def _viterbi(self, piece: str) -> list[int]:
        """The cut with the greatest sum of scores; of equal ones, the one that reaches each point from furthest left.

        Sums are rounded to float32 at each step, as the original does.
        """
        data = piece.encode()
        best: list[tuple[float, int, list[int]] | None] = [(0.0, 0, [])] + [None] * len(data)  # sum, from, ids
        starts = [place for place, byte in enumerate(data) if byte & 0xC0 != 0x80]
        for start, following in zip(starts, [*starts[1:], len(data)], strict=True):
            total = best[start][0]
            ways = [
                (self._scores[index], stop, [index])
                for stop in range(start + 1, min(start + self._longest, len(data)) + 1)
                if (index := self._normal.get(data[start:stop])) is not None
            ]
            if all(stop != following for _, stop, _ in ways):
                unknown = _float32(self._least - UNKNOWN_PENALTY)
                ways.append((unknown, following, [self._byte[byte] for byte in data[start:following]]))
            for score, stop, ids in ways:
                if best[stop] is None or total + score > best[stop][0]:
                    best[stop] = (_float32(total + score), start, ids)
        result, stop = [], len(data)
        while stop:
            _, stop, ids = best[stop]
            result[:0] = ids
        return result


def _float32(number: float) -> float:
    return _FLOAT32.unpack(_FLOAT32.pack(number))[0]
