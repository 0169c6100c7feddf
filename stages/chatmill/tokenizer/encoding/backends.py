"""The libraries that encode text: each gives exactly the ids of the vocabulary's own algorithm.

tiktoken holds a vocabulary as the ranks of byte strings, the ids of special tokens, and a pattern. It looks up a
complete piece; if it is no token, its bytes are merged pair by pair, lowest rank first. It has no list of merges: they
are derived from the ranks.
"""

import importlib
import importlib.util
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import tiktoken
from numpy.typing import NDArray
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer

from chatmill.tokenizer.vocabulary.patterns import CHARACTERS, PATTERNS
from chatmill.tokenizer.vocabulary.preprocessing import METASPACE
from chatmill.tokenizer.vocabulary.sentencepiece_model import sentencepiece_unsupported_reason, to_model_proto
from chatmill.tokenizer.vocabulary.tokenizer_json import to_json
from chatmill.tokenizer.vocabulary.vocabulary import (
    TEXT_KINDS,
    UNUSED_PREFIX,
    Algorithm,
    Kind,
    Vocabulary,
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
    if vocabulary.missing_bytes:
        return f"tiktoken needs a token for each byte, and {len(vocabulary.missing_bytes)} have none"
    if vocabulary.added_tokens:
        return f"tiktoken does not find {vocabulary.added_tokens[0].content!r} in text before it merges"
    ranks = vocabulary.text_tokens
    if vocabulary.algorithm == "lookup":
        joined = next((token for token in ranks if len(token) == 2), None)  # without one, no merge can begin
        if joined is not None and vocabulary.pattern != CHARACTERS:
            return f"tiktoken would merge the bytes of {joined!r} inside words that are not in the vocabulary"
    elif merges_by_rank(ranks) != vocabulary.merges:
        return "tiktoken merges in the order of ids, and this tokenizer's merges have another order"
    return None


def to_tiktoken_encoding(vocabulary: Vocabulary) -> tiktoken.Encoding:
    """The tokenizer as a tiktoken.Encoding. Raises ValueError if tiktoken cannot express it.

    The name, its only free field, has what `from_ranks` needs beside the ranks.
    """
    if reason := tiktoken_unsupported_reason(vocabulary):
        raise ValueError(reason)
    assert vocabulary.pattern is not None, "checked above"
    return tiktoken.Encoding(
        name=f"chatmill/{vocabulary.type}/{vocabulary.algorithm}/{vocabulary.fingerprint}",
        pat_str=vocabulary.pattern,
        mergeable_ranks=vocabulary.text_tokens,
        special_tokens=special_tokens_of(vocabulary),
        explicit_n_vocab=len(vocabulary.tokens),
    )


def special_tokens_of(vocabulary: Vocabulary) -> dict[str, int]:
    """Name to id of each control and unused token."""
    return vocabulary.named(*(kind for kind in Kind if kind not in TEXT_KINDS))


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
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise ValueError(f"it has no token for the byte {missing[0]:#04x}")
    listed = [(i, token, Kind.NORMAL) for token, i in ranks.items() if token]
    for name, i in special.items():
        listed.append((i, name.encode(), Kind.UNUSED if name.startswith(UNUSED_PREFIX) else Kind.CONTROL))
    entries: dict[int, tuple[bytes, Kind]] = {}
    for i, token, kind in listed:
        if i in entries or i < 0:
            raise ValueError(f"the id {i} has two tokens, or is negative, as that of {token!r}")
        entries[i] = token, kind
    if max(entries) >= len(entries) + MOST_GAPS:
        raise ValueError(f"it has ids up to {max(entries)} for {len(entries)} tokens: too many ids without a token")
    names = unused_names({name.encode() for name in special})
    filled = (entries.get(i) or (next(names), Kind.UNUSED) for i in range(max(entries) + 1))
    tokens, kinds = zip(*filled, strict=True)
    return tokens, kinds


Array = NDArray[np.integer[Any]]
FAST_PATTERNS = {PATTERNS["qwen2"], PATTERNS["llama3"]}  # with others fastokens splits a few texts differently
BYTE_RANKS = {bytes([byte]): byte for byte in range(256)}
BEFORE_TRIAL, TRIAL = 1_000_000, 1_000_000  # characters encoded by tiktoken alone, and by both


class Backend(ABC):
    """Encodes text, which never produces a control id."""

    @abstractmethod
    def encode(self, texts: list[str]) -> list[Array]:
        """The ids of each text."""

    def encode_one(self, text: str) -> list[int]:
        ids: list[int] = self.encode([text])[0].tolist()
        return ids

    def encode_with_special(self, text: str, controls: Mapping[str, int]) -> Array:
        """The ids of a text in which the names are control tokens; each text between them is encoded by itself."""
        stretches = re.split(f"({'|'.join(map(re.escape, controls))})", text) if controls else [text]
        texts = list(dict.fromkeys(stretches[::2]))  # each text once, such as the newline after messages
        ids = {name: np.array([i]) for name, i in controls.items()} | dict(zip(texts, self.encode(texts), strict=True))
        return np.concatenate([ids[stretch] for stretch in stretches])


def choose_backend(vocabulary: Vocabulary) -> Backend:
    """The fastest backend that gives exactly the vocabulary's ids."""
    if tiktoken_unsupported_reason(vocabulary) is None:
        if vocabulary.text_tokens == BYTE_RANKS:
            return _Bytes()
        fast = vocabulary.pattern in FAST_PATTERNS and importlib.util.find_spec("fastokens") is not None
        return _Fastokens(vocabulary) if fast and vocabulary.algorithm == "merge" else _Tiktoken(vocabulary)
    is_sentencepiece = sentencepiece_unsupported_reason(vocabulary) is None
    backend = _SentencePiece(vocabulary) if is_sentencepiece else Tokenizers(vocabulary)
    has_bytes = Kind.FALLBACK in vocabulary.kinds and vocabulary.steps is None
    return _Metaspace(vocabulary, backend) if has_bytes else backend


class _Bytes(Backend):
    def encode(self, texts: list[str]) -> list[Array]:
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]


class _Tiktoken(Backend):
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._encoding = to_tiktoken_encoding(vocabulary)

    def encode(self, texts: list[str]) -> list[Array]:
        return [self.encode_with_special(text, {}) for text in texts]

    def encode_with_special(self, text: str, controls: Mapping[str, int]) -> Array:
        return self._encoding.encode_to_numpy(text, allowed_special=set(controls), disallowed_special=())


class _Fastokens(_Tiktoken):
    """Uses tiktoken for the first characters, then both, and then fastokens alone if their ids were equal.

    fastokens uses one thread per core; the environment variable RAYON_NUM_THREADS limits them.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._fastokens = importlib.import_module("fastokens").Tokenizer.from_json_str(to_json(vocabulary))
        self._seen, self._equal = 0, True

    def encode_with_special(self, text: str, controls: Mapping[str, int]) -> Array:
        start, self._seen = self._seen, self._seen + len(text)  # characters: by tiktoken, then by both, then fast
        if start < BEFORE_TRIAL or not self._equal:
            self._seen = min(self._seen, BEFORE_TRIAL)  # a long text leaves out no trial
            return super().encode_with_special(text, controls)
        fast = self._fastokens.encode_batch_flat([text], split_special_tokens=not controls)[0]
        ids = np.frombuffer(fast, np.uint32)
        if start >= BEFORE_TRIAL + TRIAL:
            return ids
        expected = super().encode_with_special(text, controls)
        self._equal = np.array_equal(ids, expected)
        return expected


class Tokenizers(Backend):
    """Uses one thread per core; the environment variable TOKENIZERS_PARALLELISM=false limits it to one."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        try:
            self._tokenizer = Tokenizer.from_str(to_json(vocabulary, special=False))
        except Exception as error:  # tokenizers raises no narrower one
            raise ValueError(f"`tokenizers` rejects it: {error}") from error

    def encode(self, texts: list[str]) -> list[Array]:
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(one.ids, np.int64) for one in encoded]


class _SentencePiece(Backend):
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._processor = SentencePieceProcessor(model_proto=to_model_proto(vocabulary))

    def encode(self, texts: list[str]) -> list[Array]:
        ids: list[Array] = self._processor.encode(texts, return_type="numpy", num_threads=1)
        return ids


class _Metaspace(Backend):
    """For tokenizers that write a space as U+2581: that character in text is encoded as its three bytes."""

    def __init__(self, vocabulary: Vocabulary, backend: Backend) -> None:
        self._backend = backend
        fallback = {token[0]: i for i, token in enumerate(vocabulary.tokens) if vocabulary.kinds[i] == Kind.FALLBACK}
        self._metaspace_ids = np.array([fallback[byte] for byte in METASPACE.encode()])

    def encode(self, texts: list[str]) -> list[Array]:
        encoded = iter(self._backend.encode([part for text in texts for part in text.split(METASPACE)]))
        result = []
        for text in texts:
            ids = [next(encoded)]
            for _ in range(text.count(METASPACE)):
                ids += [self._metaspace_ids, next(encoded)]
            result.append(np.concatenate(ids) if len(ids) > 1 else ids[0])
        return result
