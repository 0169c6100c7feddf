"""Checks that a vocabulary can encode every text, by a slow and readable encoder that others must agree with.

Text is split into the matches of the vocabulary's pattern, and one algorithm turns each piece into ids. Without a
pattern the text is split only at U+2581: tokens write a space as U+2581, so in text it is a piece of its own that no
token covers. The preprocessing of an external tokenizer comes first, and its added tokens are found before or after it.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import pairwise

import regex
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from chatmill.tokenizer.vocabulary.patterns import ANYTHING, check_expression, check_pattern
from chatmill.tokenizer.vocabulary.preprocessing import METASPACE, Preprocessor, float32, patterns_of
from chatmill.tokenizer.vocabulary.tokenizer_json import MAX_INPUT_CHARS_PER_WORD, id_to_piece
from chatmill.tokenizer.vocabulary.vocabulary import (
    CONTINUING_SUBWORD_PREFIX,
    MAX_TOKEN_BYTES,
    TEXT_KINDS,
    WHITESPACE,
    AddedToken,
    Kind,
    Vocabulary,
    merge_parts,
)

# A slow and readable encoder, with which every fast tokenizer of the same vocabulary must agree.

_WORD = regex.compile(r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]")  # as `\w` in Rust
METASPACE_OR_REST = "\u2581|[^\u2581]+"
SMALLEST_FLOAT32 = 2.0**-126  # positive and normal; no score of SentencePiece's user-defined pieces is made of less
UNKNOWN_PENALTY = 10.0  # a character without a token scores so much less than any token, as in SentencePiece
CACHE_SIZE = 1 << 16  # pieces: words recur


class ReferenceEncoder:
    """Encodes text by the algorithm that the vocabulary names."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        added = vocabulary.added_tokens
        self._steps = Preprocessor(vocabulary.steps, [token.content.replace(" ", METASPACE) for token in added])
        tokenizers, has_steps = self._steps.library == "tokenizers", vocabulary.steps is not None
        scored = vocabulary.algorithm == "viterbi" and not tokenizers  # SentencePiece gives them scores, best of all
        late = [token for token in added if has_steps and (token.normalized or not tokenizers) and not scored]
        self._early_search = AddedTokenSearch(token for token in added if token not in late and not scored)
        self._late_search = AddedTokenSearch(late, self._as_normalized)
        self._marked = vocabulary.spelling == "marked"
        self._is_marked_by_steps = self._marked and has_steps
        pattern = vocabulary.pattern or (METASPACE_OR_REST if self._marked and not has_steps else ANYTHING)
        self._split = Split(Regex(pattern), "removed", invert=True)
        self._scores = self._steps.scores(vocabulary.scores)
        ids: dict[Kind, dict[bytes, int]] = {kind: {} for kind in Kind}
        for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)):
            ids[kind][token] = index
        self._normal, self._continuation = ids[Kind.NORMAL], ids[Kind.CONTINUATION]
        self._initial = self._normal
        if vocabulary.spelling == "plain":  # a word that begins with the prefix is taken for a continuation
            self._initial |= {CONTINUING_SUBWORD_PREFIX.encode() + token: i for token, i in self._continuation.items()}
        self._byte = {token[0]: i for token, i in (ids[Kind.FALLBACK] or self._normal).items() if len(token) == 1}
        self._unknown = next(iter(ids[Kind.UNKNOWN].values()), None) if not ids[Kind.FALLBACK] else None
        self._longest = max(map(len, vocabulary.tokens)) + len(CONTINUING_SUBWORD_PREFIX)
        scores = [self._scores[index] for index in self._normal.values()]
        self._least, highest = min(scores, default=0.0), max([*scores, SMALLEST_FLOAT32])
        self._candidates = {token: (index, self._scores[index]) for token, index in self._normal.items()}
        for token, index in ids[Kind.ADDED].items() if scored else ():
            length = len(token.replace(b" ", METASPACE.encode()))
            self._candidates[token] = (index, float32(length * highest - 0.1))
        self._round_score = self._steps.round_score
        self._merges = {
            (vocabulary.tokens[left], vocabulary.tokens[right]): rank
            for rank, (left, right) in enumerate(vocabulary.merges)
        }
        algorithm: Callable[[str], list[int]] = {
            "lookup": self._lookup,
            "merge": self._merge,
            "wordpiece": self._wordpiece,
            "viterbi": self._viterbi,
        }[vocabulary.algorithm]
        is_merged = self._marked and vocabulary.algorithm == "merge"  # a text without a pattern
        self._adjacent = {pair for token in self._normal for pair in pairwise(token.decode())} if is_merged else set()
        self._ids_of = lru_cache(CACHE_SIZE)(algorithm)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in self._pieces(text):
            if isinstance(piece, int):
                ids.append(piece)
                continue
            piece_ids = [index for stretch in self._stretches(piece) for index in self._ids_of(stretch)]
            ids += piece_ids if self._unknown is None else self._fuse_unknown(piece_ids)
        return ids

    def _as_normalized(self, content: str) -> str:
        is_tokenizers = self._steps.library == "tokenizers"
        return self._steps.normalize(content) if is_tokenizers else content.replace(" ", METASPACE)

    def _pieces(self, text: str) -> Iterator[str | int]:
        """The ids of added tokens, and the pieces between them."""
        for part in self._early_search.split(text):
            if isinstance(part, int):
                yield part
                continue
            for stretch in self._late_search.split(self._steps.normalize(part)):
                if isinstance(stretch, int):
                    yield stretch
                    continue
                for split in self._steps.split(stretch):
                    unmarked = split.replace(METASPACE, " ") if self._is_marked_by_steps else split
                    yield from (piece for piece, _ in self._split.pre_tokenize_str(unmarked))

    def _stretches(self, piece: str) -> Iterator[str]:
        """The piece, cut between characters that are adjacent in no token: a whole line takes 100 times longer."""
        start = 0
        for place, pair in enumerate(pairwise(piece), start=1) if self._adjacent else ():
            if pair not in self._adjacent:
                yield piece[start:place]
                start = place
        yield piece[start:]

    def _lookup(self, piece: str) -> list[int]:
        """The token of the complete piece, or else those of its bytes: nothing is merged."""
        data = piece.encode()
        if data in self._normal:
            return [self._normal[data]]
        return [self._byte[byte] for byte in data if byte in self._byte]  # a byte without a token is left out

    def _merge(self, piece: str) -> list[int]:
        """The complete piece, or else its bytes (without a pattern: characters) merged by pairs, lowest rank first."""
        if self._marked:
            characters = merge_parts([character.encode() for character in piece], self._rank_of)
            return [index for part in characters for index in self._character(part)]
        data = piece.encode()
        if data in self._normal:
            return [self._normal[data]]
        parts = merge_parts([bytes([byte]) for byte in data if byte in self._byte], self._rank_of)
        return [self._normal[part] for part in parts]

    def _rank_of(self, left: bytes, right: bytes) -> float:
        return self._merges.get((left, right), math.inf)

    def _wordpiece(self, piece: str) -> list[int]:
        """From the left, the longest entry each time: the first one initial, the others continuations."""
        if self._unknown is not None and len(piece) > MAX_INPUT_CHARS_PER_WORD:
            return [self._unknown]
        data, entries = piece.encode(), self._initial
        ids: list[int] = []
        while data:
            lengths = range(min(len(data), self._longest), 0, -1)
            length = next((n for n in lengths if data[:n] in entries), None)
            if length is None:
                assert self._unknown is not None, "a byte without a token"
                return [self._unknown]
            ids.append(entries[data[:length]])
            data, entries = data[length:], self._continuation
        return ids

    def _viterbi(self, piece: str) -> list[int]:
        """The split with the greatest sum of scores; of equal ones, that with the longest token before each place.

        Sums are rounded at each step as in the original library.
        """
        data = piece.encode()
        best: dict[int, tuple[float, int, list[int]]] = {0: (0.0, 0, [])}  # by end: sum, start, ids of the last token
        starts = [place for place, byte in enumerate(data) if byte & 0xC0 != 0x80]
        for start, following in zip(starts, [*starts[1:], len(data)], strict=True):
            total = best[start][0]
            candidates = [
                (entry[1], stop, [entry[0]])
                for stop in range(start + 1, min(start + self._longest, len(data)) + 1)
                if (entry := self._candidates.get(data[start:stop])) is not None
            ]
            if all(stop != following for _, stop, _ in candidates):
                score = self._round_score(self._least - UNKNOWN_PENALTY)
                candidates.append((score, following, self._character(data[start:following])))
            for score, stop, ids in candidates:
                reached = self._round_score(total + score)
                if stop not in best or reached > best[stop][0]:
                    best[stop] = (reached, start, ids)
        result: list[int] = []
        end = len(data)
        while end:
            _, end, ids = best[end]
            result[:0] = ids
        return result

    def _character(self, character: bytes) -> list[int]:
        """The id of a character's token, or else the ids of its bytes or the unknown id."""
        if character in self._normal:
            return [self._normal[character]]
        return [self._byte[byte] for byte in character] if self._unknown is None else [self._unknown]

    def _fuse_unknown(self, ids: list[int]) -> list[int]:
        return [index for before, index in pairwise([-1, *ids]) if index != self._unknown or before != index]


class AddedTokenSearch:
    """Finds added tokens in text from the left, the longest first, as `tokenizers` does.

    [AddedToken("<mask>", 9, lstrip=True)]    "a <mask> b" -> "a", 9, " b"
    """

    def __init__(self, tokens: Iterable[AddedToken], rewrite: Callable[[str], str] = str) -> None:
        """`rewrite` normalises the tokens' texts if the searched text is normalised."""
        self._tokens = {rewrite(token.content): token for token in tokens}
        names = sorted(self._tokens, key=len, reverse=True)
        self._expression = regex.compile("|".join(map(regex.escape, names))) if names else None

    def split(self, text: str) -> Iterator[str | int]:
        """The ids of the tokens found, and the texts between them that are not empty."""
        end = 0
        for match in self._expression.finditer(text) if self._expression else ():
            token, (start, stop) = self._tokens[match[0]], match.span()
            if token.single_word and (_WORD.match(text[max(0, start - 1) : start]) or _WORD.match(text, stop)):
                continue
            if token.lstrip:
                start = end + len(text[end:start].rstrip(WHITESPACE))
            if end < start:
                yield text[end:start]
            yield token.id
            end = len(text) - len(text[stop:].lstrip(WHITESPACE)) if token.rstrip else stop
        if end < len(text):
            yield text[end:]


# Check that a vocabulary from a file can encode every text, without a crash or loss.


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
        run = Preprocessor(vocabulary.steps).run
        if vocabulary.spelling == "marked" and any(" " in stretch for stretch in run("a b")):
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
        if vocabulary.spelling == "marked" and b"\0" in token and kind != Kind.FALLBACK:
            raise ValueError("a token contains the character U+0000, which SentencePiece does not support")
        if kind not in TEXT_KINDS and len(token.decode()) == 1:
            raise ValueError(f"the name of its token {i}, {token!r}, is a single character, which text may contain")
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
