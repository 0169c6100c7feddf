"""The content of a tokenizer, independent of its file format, and its fingerprint."""

import hashlib
import json
import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import count, pairwise
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from chatmill.tokenizer.vocabulary.patterns import check_expression, check_pattern
from chatmill.tokenizer.vocabulary.preprocessing import METASPACE, float32, marks_spaces, patterns_of, splits_only

FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
WHITESPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
Algorithm = Literal["lookup", "merge", "wordpiece", "viterbi"]
MergePair = tuple[int, int]
VOCAB_SIZE_MULTIPLE = 64  # the size of a vocabulary is a multiple of it
CONTINUING_SUBWORD_PREFIX = "##"  # before WordPiece continuations, if entries are text and not bytes
UNUSED_PREFIX = "<|unused_"  # of the names of unused ids
MAX_TOKEN_BYTES = 1024  # of a token that is read from a file
NO_RANK = -1e6  # score of tokens without a rank, such as single bytes and control tokens


class Kind(IntEnum):
    NORMAL = 0
    CONTINUATION = 1  # only inside a word: its text follows other text of the same piece
    FALLBACK = 2  # one byte, for text that no other entry covers
    CONTROL = 3  # never produced by text
    UNUSED = 4  # an id without a token
    UNKNOWN = 5  # text that no token covers, if there is no byte fallback
    ADDED = 6  # text that is found before the rest is split, such as a user-defined piece of SentencePiece


TEXT_KINDS = frozenset({Kind.NORMAL, Kind.CONTINUATION, Kind.FALLBACK, Kind.ADDED})  # of ids that text can produce


class AddedToken(NamedTuple):
    """A token that is searched in text, with its flags as in tokenizer.json."""

    content: str
    id: int
    single_word: bool = False  # not found inside a word
    lstrip: bool = False  # takes the whitespace before it
    rstrip: bool = False  # takes the whitespace after it
    normalized: bool = False  # searched in normalised text


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer's content, in id order.

    `algorithm` is how a piece becomes ids: `lookup` (the complete piece, or else its bytes), `merge` (pairs by rank),
    `wordpiece` (longest match first), `viterbi` (best sum of scores). `pattern` is the regular expression whose matches
    are the pieces; None if the text is not split. `merges` are pairs of ids, by rank.

    An external tokenizer may also normalise or split text in other ways: `steps`, a text of
    chatmill.tokenizer.vocabulary.preprocessing. `special_handling` says how programs that search text for special
    tokens find them (the flags of tokenizer.json that differ from the defaults), and which they put around a text. It
    changes no id of text, and is not part of the fingerprint:

        {"added_tokens": {"<|end|>": {"rstrip": true}}, "post_processor": {"type": "RobertaProcessing", …}}

    `"assumed": ["<s>", "<mask>"]` in it names tokens of a file that does not say which are special.
    """

    type: str
    algorithm: Algorithm
    pattern: str | None
    tokens: tuple[bytes, ...]  # exact bytes of each token; of a control or unused token, its name
    kinds: tuple[Kind, ...]
    scores: tuple[float, ...]  # float32; log-probabilities for viterbi, otherwise from `rank_scores`
    merges: tuple[MergePair, ...] = ()
    steps: str | None = None
    special_handling: str | None = None

    @cached_property
    def text_ids(self) -> tuple[int, ...]:
        """The ids that text can produce, in order. In chatmill's own vocabularies control tokens follow them."""
        return tuple(i for i, kind in enumerate(self.kinds) if kind in TEXT_KINDS)

    @property
    def num_text(self) -> int:
        return len(self.text_ids)

    @cached_property
    def text_tokens(self) -> dict[bytes, int]:
        """The bytes of each token that text can produce, and its id: what tiktoken calls ranks."""
        return {self.tokens[i]: i for i in self.text_ids}

    @property
    def has_longer_tokens(self) -> bool:
        return any(len(token) > 1 for token in self.text_tokens)

    @property
    def byte_lengths(self) -> list[int]:
        """The number of text bytes of each id, 0 for control and unused tokens."""
        entries = zip(self.tokens, self.kinds, strict=True)
        return [len(token) if kind in TEXT_KINDS else 0 for token, kind in entries]

    @property
    def spelling(self) -> Literal["bytes", "marked", "plain"]:
        """How files write tokens: in the byte-level alphabet, as text with U+2581 for spaces, or as plain text."""
        if self.type == "sentencepiece":
            return "marked"
        return "plain" if self.algorithm == "wordpiece" and self.steps is not None else "bytes"

    @cached_property
    def missing_bytes(self) -> bytes:
        """The bytes that no token can say, in order: published vocabularies lack some that few texts have."""
        if self.spelling != "bytes" or self.algorithm == "wordpiece" or {Kind.FALLBACK, Kind.UNKNOWN} & {*self.kinds}:
            return b""
        single = {token for token, kind in zip(self.tokens, self.kinds, strict=True) if kind == Kind.NORMAL}
        return bytes(byte for byte in range(256) if bytes([byte]) not in single)

    @cached_property
    def lossless(self) -> bool:
        """Whether the tokens of every text are exactly its bytes, but for those that are missing."""
        covers_all = Kind.UNKNOWN not in self.kinds or Kind.FALLBACK in self.kinds
        strips = any(token.lstrip or token.rstrip for token in self.added_tokens)
        return covers_all and not strips and (self.steps is None or splits_only(self.steps))

    @cached_property
    def handling(self) -> dict[str, Any]:
        return dict(json.loads(self.special_handling or "{}"))

    @property
    def flags(self) -> dict[str, dict[str, bool]]:
        """The flags of each added token that has any, by name."""
        return dict(self.handling.get("added_tokens", {}))

    @cached_property
    def added_tokens(self) -> list[AddedToken]:
        """The tokens that are found in text before the rest is split."""
        flags, named = self.flags, self.named(Kind.ADDED).items()
        return [AddedToken(name, i, *(flags.get(name, {}).get(flag, False) for flag in FLAGS)) for name, i in named]

    @cached_property
    def special(self) -> dict[str, int]:
        """Name to id of each control token."""
        return self.named(Kind.CONTROL)

    def named(self, *kinds: Kind) -> dict[str, int]:
        """Name to id of each token of some kinds, in the order of ids."""
        return {self.tokens[i].decode(): i for i, kind in enumerate(self.kinds) if kind in kinds}

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of canonical JSON of the content; the same for every file format."""
        entries = [
            [token.hex(), int(kind), f"{score:.6g}"]
            for token, kind, score in zip(self.tokens, self.kinds, self.scores, strict=True)
        ]
        content: dict[str, object] = {
            "type": self.type,
            "pattern": self.pattern,
            "vocabulary": entries,
            "merges": self.merges,
            "controls": self.special,
        }
        if self.steps is not None:
            content["steps"] = self.steps
        if any(token != AddedToken(token.content, token.id) for token in self.added_tokens):
            content["added_tokens"] = self.added_tokens
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def rank_scores(tokens: Sequence[bytes], kinds: Sequence[Kind], merges: Sequence[MergePair] = ()) -> tuple[float, ...]:
    """-ln(rank + 1): the rank of the first merge that makes a token; without merges, its place among longer tokens."""
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


def merges_by_rank(ranks: Mapping[bytes, int]) -> tuple[MergePair, ...]:
    """The merges of byte-level tokens, in the order of their ranks: the last two parts of each when pairs are merged.

    One pair is enough: a token comes about only where its bytes are merged as if they stood alone. Usually lower ranks
    leave two parts; where they leave more, a token of a higher rank may join two of them first. A token without a merge
    is found only by looking up a complete piece.
    """
    known: dict[bytes, int] = {token: i for token, i in ranks.items() if len(token) == 1}
    merges = []
    for token, i in sorted(ranks.items(), key=itemgetter(1)):
        if len(token) > 1:
            parts = byte_pair_merge(token, known)
            if len(parts) > 2:
                parts = byte_pair_merge(token, ranks, num_parts=2)
            if len(parts) == 2:
                merges.append((ranks[parts[0]], ranks[parts[1]]))
            known[token] = i
    return tuple(merges)


def byte_pair_merge(piece: bytes, ranks: Mapping[bytes, int], num_parts: int = 1) -> list[bytes]:
    """The bytes of a piece, merged where two parts make a token, until none do or only `num_parts` parts are left.

    The pair with the lowest rank is merged first.
    """
    parts = [piece[i : i + 1] for i in range(len(piece))]
    pairs = [ranks.get(left + right, math.inf) for left, right in pairwise(parts)]
    while len(parts) > num_parts and (best := min(pairs)) < math.inf:
        i = pairs.index(best)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
        del pairs[i]
        for place in range(max(i - 1, 0), min(i + 1, len(pairs))):
            pairs[place] = ranks.get(parts[place] + parts[place + 1], math.inf)
    return parts


def unused_names(taken: Container[bytes]) -> Iterator[bytes]:
    """Endless names for unused ids, without those that are taken."""
    return (name for k in count() if (name := f"{UNUSED_PREFIX}{k}|>".encode()) not in taken)


def byte_level_vocabulary(longer: Iterable[bytes], type: str, algorithm: Algorithm, pattern: str) -> Vocabulary:
    """The text tokens of a byte-level tokenizer: the 256 bytes, then the longer tokens of training by rank."""
    tokens = (*(bytes([byte]) for byte in range(256)), *longer)
    kinds = (Kind.NORMAL,) * len(tokens)
    ranks = {token: i for i, token in enumerate(tokens)}
    assert len(ranks) == len(tokens), "a duplicate token"
    merges = merges_by_rank(ranks) if algorithm == "merge" else ()
    return Vocabulary(type, algorithm, pattern, tokens, kinds, rank_scores(tokens, kinds, merges), merges)


def to_special_handling(added: Mapping[str, Mapping[str, bool]], post_processor: Any = None) -> str | None:
    """The text of flags by name and a post-processor; None if there are neither."""
    content: dict[str, Any] = {"added_tokens": {name: flags for name, flags in added.items() if flags}}
    content["post_processor"] = post_processor
    content = {key: value for key, value in content.items() if value}
    return json.dumps(content, sort_keys=True, ensure_ascii=False) if content else None


# How files write tokens.

BYTE_LEVEL_SUBWORD_PREFIX = "→"  # before WordPiece continuations; not in the byte-level alphabet
UNUSED_ENTRY = re.compile(r"\[unused\d+\]")  # the names of unused entries in BERT's vocabularies
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTE_TO_UNICODE = {byte: chr(byte) for byte in _PRINTABLE} | {
    byte: chr(0x100 + place) for place, byte in enumerate(sorted(set(range(256)) - set(_PRINTABLE)))
}
_UNICODE_TO_BYTE = {letter: byte for byte, letter in _BYTE_TO_UNICODE.items()}
Entry = tuple[bytes, Kind]


def id_to_piece(vocabulary: Vocabulary, i: int) -> str:
    """How the file writes a token: in the byte-level alphabet, as SentencePiece does, or as plain text."""
    token, kind = vocabulary.tokens[i], vocabulary.kinds[i]
    if kind >= Kind.CONTROL:
        return token.decode()
    if kind == Kind.FALLBACK:
        return f"<0x{token[0]:02X}>"
    match vocabulary.spelling:
        case "marked":
            return token.decode().replace(" ", METASPACE)
        case "plain":
            return (CONTINUING_SUBWORD_PREFIX if kind == Kind.CONTINUATION else "") + token.decode()
    letters = "".join(map(_BYTE_TO_UNICODE.__getitem__, token))
    return BYTE_LEVEL_SUBWORD_PREFIX + letters if kind == Kind.CONTINUATION else letters


def sentencepiece_entry(piece: str) -> Entry:
    """The bytes and the kind of a text piece, as SentencePiece writes it."""
    if re.fullmatch(r"<0x[0-9A-F]{2}>", piece):
        return bytes.fromhex(piece[3:5]), Kind.FALLBACK
    return piece.replace(METASPACE, " ").encode(), Kind.NORMAL


def byte_level_entry(piece: str) -> Entry:
    """The bytes and the kind of a piece in letters of the byte-level alphabet. Raises ValueError for other letters."""
    letters = piece.removeprefix(BYTE_LEVEL_SUBWORD_PREFIX)
    if not letters or not all(map(_UNICODE_TO_BYTE.__contains__, letters)):
        raise ValueError(f"its piece {piece!r:.80} is not in the byte-level alphabet")
    return bytes(map(_UNICODE_TO_BYTE.__getitem__, letters)), Kind.NORMAL if letters == piece else Kind.CONTINUATION


def plain_entry(piece: str) -> Entry:
    """The bytes and the kind of an entry of a plain-text WordPiece vocabulary."""
    if UNUSED_ENTRY.fullmatch(piece):
        return piece.encode(), Kind.UNUSED
    text = piece.removeprefix(CONTINUING_SUBWORD_PREFIX)
    return (text.encode(), Kind.CONTINUATION) if text and text != piece else (piece.encode(), Kind.NORMAL)


# Checks that a vocabulary from a file can encode every text, without a crash or loss.


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
        if vocabulary.spelling == "marked" and not marks_spaces(vocabulary.steps):
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
        if vocabulary.spelling == "marked" and b"\0" in token and kind != Kind.FALLBACK:
            raise ValueError("a token contains the character U+0000, which SentencePiece does not support")
        if kind not in TEXT_KINDS and len(token.decode()) == 1:
            raise ValueError(f"the name of its token {i}, {token!r}, is a single character, which text may contain")
        is_text = vocabulary.spelling != "bytes" or kind >= Kind.CONTROL
        key = id_to_piece(vocabulary, i) if is_text else (token, kind)
        if seen.setdefault(key, i) != i:
            raise ValueError(f"its tokens {seen[key]} and {i} are the same, {token!r:.80}")


def _check_bytes(vocabulary: Vocabulary) -> None:
    """Raise ValueError if a byte has no token, unless there is an unknown token, or a byte-level BPE lacks it."""
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
