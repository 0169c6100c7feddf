"""Fingerprints of rendered conversations: near-duplicates share at least one, and other texts seldom do.

Of each text there are

- for a short one, hashes of its words without one of them, and of all, so that texts that differ in a word share one;
- else BANDS keys of ROWS minima over shingles of two words (MinHash, Broder 1997, in bands: Leskovec et al., Mining of
  Massive Datasets, section 3.4): texts of Jaccard similarity s share one with probability 1 - (1 - s^ROWS)^BANDS;
- of the first 8, 16, 32 … words from each question on, so that a conversation shares its longest with those that it is
  a part of.

Near-duplicates have the same numbers, so that the first two kinds hold a hash of these: of a thousand copies of a
template with other numbers none shares a key with another. Words are hashed as bytes, in arrays over many texts at a
time. System messages are left out.

Shapes: B bytes, W words, T texts, K keys.
"""

import hashlib
import re
import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SHORT, LONG = 18, 15  # words with headers: texts up to SHORT have keys without a word, texts from LONG on have bands
BANDS, ROWS = 14, 4
FIRST_STEP = 8  # words of the shortest beginning

Hashes = NDArray[np.uint64]
Indices = NDArray[np.int64]

_random = hashlib.shake_128(b"fingerprints").digest(256 * 8 + 2 * BANDS * ROWS * 4)
_BYTES = np.frombuffer(_random, "<u8", 256).astype(np.uint64)
_MULTIPLY, _ADD = np.frombuffer(_random, "<u4", offset=256 * 8).astype(np.uint32).reshape(2, -1, 1)
_MULTIPLY |= 1
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 2**64)

_USER, _ASSISTANT = b"\1", b"\2"
_DIGITS = re.compile(rb"\d+")
_SPACES = re.compile("[\u2000-\u2fff\u3000-\u303f\uff00-\uff0f]")
_IS_WORD = np.array([byte >= 128 or chr(byte).isalnum() or byte in b"_\1\2" for byte in range(256)])
_IS_SIGN = np.array(
    [0xE3 <= byte <= 0xE9 for byte in range(256)]
)  # first bytes of kana and ideographs, words by themselves
_BYTES[~_IS_WORD] = 0


class Fingerprints(NamedTuple):
    """K keys with the numbers of their texts."""

    hashes: Hashes  # (K,)
    owners: Indices  # (K,)
    is_part: NDArray[np.bool_]  # (K,) the key is of a beginning, and only parts are sought by it
    is_whole: NDArray[np.bool_]  # (K,) the longest beginning of its text


class _Words(NamedTuple):
    hashes: Hashes  # (W,)
    is_question: NDArray[np.bool_]  # (W,) headers of questions
    starts: Indices  # (T + 1,)
    owners: Indices  # (W,)
    sums: Hashes  # (W + 1,) of hashes times powers, from which a span's hash follows


def fingerprints(texts: list[str]) -> Fingerprints:
    """The keys of texts, which are numbered from 0."""
    encoded = [_plain(text) for text in texts]
    words = _words(encoded)
    lengths = np.diff(words.starts)
    found = [_bands(words, lengths), _without_a_word(words, lengths), *_beginnings(words)]
    hashes, owners, wholes = (np.concatenate(part) for part in zip(*found, strict=True))
    count = len(found[0][0]) + len(found[1][0])
    hashes[:count] ^= _numbers(encoded)[owners[:count]]
    is_part = np.ones(len(hashes), np.bool_)
    is_part[:count] = False
    return Fingerprints(hashes, owners, is_part, wholes)


def _numbers(texts: list[bytes]) -> Hashes:
    found = (b"|".join(_DIGITS.findall(text)) for text in texts)
    return _mixed(np.fromiter(map(zlib.crc32, found), np.uint64, len(texts)))


def _words(texts: list[bytes]) -> _Words:
    data = np.frombuffer(b"".join(texts), np.uint8)
    inside = _IS_WORD[data]
    begins = inside & ~np.concatenate([[False], inside[:-1]])
    begins |= _IS_SIGN[data]
    firsts = np.flatnonzero(begins)
    offsets = np.cumsum([0, *map(len, texts)])
    starts = np.searchsorted(firsts, offsets)
    if not len(firsts):
        return _Words(
            np.zeros(0, np.uint64), np.zeros(0, np.bool_), starts, np.zeros(0, np.int64), np.zeros(1, np.uint64)
        )
    sums = np.add.reduceat(_BYTES[data] * _powers(_BASE, len(data)), firsts)
    hashes = _mixed(sums * _powers(_INVERSE, len(data))[firsts])
    spans = np.zeros(len(hashes) + 1, np.uint64)
    np.cumsum(hashes * _powers(_BASE, len(hashes)), out=spans[1:])
    owners = np.repeat(np.arange(len(texts)), np.diff(starts))
    return _Words(hashes, data[firsts] == ord(_USER), starts, owners, spans)


def _plain(text: str) -> bytes:
    """The text in lower case, with a newline at its end, without system messages; headers are words of one byte."""
    if text.startswith("<|im_start|>system\n"):
        text = text.partition("<|im_end|>\n")[2]
    if not text.isascii():
        text = _SPACES.sub(" ", text)
    data = text.lower().encode().replace(b"<|im_start|>user\n", _USER + b" ").replace(b"<|im_end|>\n", b"\n")
    return data.replace(b"<|im_start|>assistant\n", _ASSISTANT + b" ") + b"\n"


_cached: dict[int, Hashes] = {}


def _powers(base: int, count: int) -> Hashes:
    """base^0 … base^(count - 1), modulo 2^64."""
    if len(_cached.get(base, ())) < count:
        powers = np.full(count, base, np.uint64)
        powers[:1] = 1
        _cached[base] = np.multiply.accumulate(powers)
    return _cached[base][:count]


def _mixed(hashes: Hashes) -> Hashes:
    """The finalizer of MurmurHash3."""
    hashes = (hashes ^ (hashes >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    hashes = (hashes ^ (hashes >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return hashes ^ (hashes >> np.uint64(33))


def _span(words: _Words, start: Indices, end: Indices) -> Hashes:
    """The hashes of the words from `start` to before `end`."""
    return (words.sums[end] - words.sums[start]) * _powers(_INVERSE, len(words.sums))[start]


_Found = tuple[Hashes, Indices, NDArray[np.bool_]]


def _bands(words: _Words, lengths: Indices) -> _Found:
    texts = np.flatnonzero(lengths >= LONG)
    chosen = np.repeat(lengths >= LONG, lengths)
    chosen[words.starts[1:][lengths > 0] - 1] = False  # no shingle begins with the last word of a text
    first = np.flatnonzero(chosen)
    if not len(texts):
        return np.zeros(0, np.uint64), texts, np.zeros(0, np.bool_)
    values = (_mixed(words.hashes[first] * np.uint64(3) + words.hashes[first + 1]) >> np.uint64(32)).astype(np.uint32)
    starts = np.concatenate([[0], np.cumsum(lengths[texts] - 1)[:-1]])
    keys = np.empty((BANDS, len(texts)), np.uint64)
    for band in range(BANDS):
        key = np.full(len(texts), band, np.uint64)
        for row in range(band * ROWS, (band + 1) * ROWS):
            key = _mixed(key * np.uint64(_BASE) + np.minimum.reduceat(values * _MULTIPLY[row] + _ADD[row], starts))
        keys[band] = key
    return keys.ravel(), np.tile(texts, BANDS), np.zeros(keys.size, np.bool_)


def _without_a_word(words: _Words, lengths: Indices) -> _Found:
    chosen = np.flatnonzero(np.repeat((lengths <= SHORT), lengths))
    owners = words.owners[chosen]
    start, end = words.starts[owners], words.starts[owners + 1]
    base = np.uint64(_BASE)
    before, after = _span(words, start, chosen), _span(words, chosen + 1, end)
    without = before + after * _powers(_BASE, SHORT + 1)[chosen - start]
    texts = np.flatnonzero((lengths <= SHORT) & (lengths > 0))
    complete = _span(words, words.starts[texts], words.starts[texts + 1])
    keys = _mixed(np.concatenate([without, complete]) ^ base)
    return keys, np.concatenate([owners, texts]), np.zeros(len(keys), np.bool_)


def _beginnings(words: _Words) -> list[_Found]:
    start = np.flatnonzero(words.is_question)
    owners = words.owners[start]
    is_first = np.ones(len(start), np.bool_)
    is_first[1:] = owners[1:] != owners[:-1]
    ends = words.starts[owners + 1]
    found, step = [], FIRST_STEP
    while len(start):
        fits = start + step <= ends
        start, owners, is_first, ends = start[fits], owners[fits], is_first[fits], ends[fits]
        is_whole = is_first & (start + 2 * step > ends)
        found.append((_mixed(_span(words, start, start + step) + np.uint64(step)), owners, is_whole))
        step *= 2
    return found
