"""tokenizer.bin, a complete tokenizer in one file that is mapped and not parsed; and tokenizer.llama2c.bin.

README.md beside this module describes tokenizer.bin byte by byte. tokenizer.llama2c.bin has only the length of the
longest token and the records, as in karpathy/llama2.c's tokenizer.py. Its readers merge the adjacent pair whose token
has the best score, until none makes a token. They start from single bytes; for char and sentencepiece from characters,
or the bytes of characters without a token.
"""

import json
import mmap
import struct
from contextlib import closing
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any

from chatmill.conversation import BOS, IM_END
from chatmill.tokenizer.vocabulary.patterns import CHARACTERS
from chatmill.tokenizer.vocabulary.tokenizer_json import unmerged
from chatmill.tokenizer.vocabulary.vocabulary import TEXT_KINDS, Kind, Vocabulary

MAGIC = b"chatmill"
VERSION = 1
BLOCK = 4096  # bytes under one checksum
NO_ID = 2**32 - 1
STARTS = (BOS, "<s>", "<|begin_of_text|>", "[CLS]", "<|endoftext|>")  # names of the token before a text, best first
ENDS = (IM_END, "<|eot_id|>", "</s>", "[SEP]", "<|endoftext|>")

_HEADER = struct.Struct("<III")
_RECORD = struct.Struct("<fI")  # score and length, before a token's bytes
_SPAN = struct.Struct("<II")  # two neighbours in the offsets: where a record starts and ends
_FOOTER = struct.Struct("<8sIQIII")
_PLACE = 4  # bytes of an offset
_CHECKSUM_SIZE, _FOOTER_CHECKSUM_SIZE = 8, 16  # bytes of a block's and of the footer's checksum


def write_llama2c(vocabulary: Vocabulary, file: Path) -> None:
    longest = max(map(len, vocabulary.tokens))
    file.write_bytes(struct.pack("<I", longest) + b"".join(_records(vocabulary)))


def _records(vocabulary: Vocabulary) -> list[bytes]:
    scored = zip(vocabulary.tokens, vocabulary.scores, strict=True)
    return [_RECORD.pack(score, len(token)) + token for token, score in scored]


def write_binary(vocabulary: Vocabulary, file: Path) -> None:
    """Write the tokenizer; `read_binary` is the inverse. Equal vocabularies give equal bytes."""
    rows, special = _records(vocabulary), vocabulary.special
    ends = (next((special[name] for name in names if name in special), NO_ID) for names in (STARTS, ENDS))
    starts = list(accumulate(map(len, rows), initial=_HEADER.size))
    body = b"".join(
        [
            _HEADER.pack(max(map(len, vocabulary.tokens)), *ends),
            *rows,
            struct.pack(f"<{len(starts)}I", *starts),
            bytes(vocabulary.kinds),
            *(_SPAN.pack(*pair) for pair in vocabulary.merges),
        ]
    )
    description = {
        "algorithm": vocabulary.algorithm,
        "controls": special,
        "fingerprint": vocabulary.fingerprint,
        "pattern": vocabulary.pattern,
        "type": vocabulary.type,
    }
    extras = {"steps": vocabulary.steps, "special_handling": vocabulary.special_handling}
    description |= {name: text for name, text in extras.items() if text is not None}
    text = json.dumps(description, ensure_ascii=False, sort_keys=True).encode()
    blocks = (body[start : start + BLOCK] for start in range(0, len(body), BLOCK))
    sums = b"".join(_checksum(block, _CHECKSUM_SIZE) for block in blocks)
    footer = _FOOTER.pack(MAGIC, VERSION, len(body), len(rows), len(vocabulary.merges), len(text))
    file.write_bytes(body + text + sums + footer + _checksum(text + sums + footer, _FOOTER_CHECKSUM_SIZE))


def has_footer(data: bytes) -> bool:
    """Whether a file ends with the footer; a text does not, as it has no NUL."""
    footer = data[-_FOOTER.size - _FOOTER_CHECKSUM_SIZE :]
    return footer.startswith(MAGIC) and b"\0" in footer[: _FOOTER.size]


def read_binary(file: Path) -> Vocabulary:
    """The vocabulary in a file that `write_binary` wrote."""
    with closing(BinaryTokenizer(file)) as binary:
        return binary.vocabulary()


class BinaryTokenizer:
    """A mapped tokenizer.bin: any token in constant time, without reading the rest.

    Raises ValueError if the footer or the index is damaged, and at the first touch of another damaged block.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        if file.stat().st_size < _HEADER.size + _FOOTER.size + _FOOTER_CHECKSUM_SIZE:
            raise self._error("too short for a tokenizer")
        with file.open("rb") as stream:
            self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        place = len(self._map) - _FOOTER.size - _FOOTER_CHECKSUM_SIZE
        magic, version, end, self.vocab_size, merges, length = _FOOTER.unpack_from(self._map, place)
        if magic != MAGIC:
            raise self._error("no footer: it is truncated, or another program's file")
        if version != VERSION:
            raise self._error(f"version of the format: expected {VERSION}, got {version}")
        index = self._map[end:]
        if _checksum(index[:-_FOOTER_CHECKSUM_SIZE], _FOOTER_CHECKSUM_SIZE) != index[-_FOOTER_CHECKSUM_SIZE:]:
            raise self._error("its index is damaged")
        self._description: dict[str, Any] = json.loads(index[:length])
        self._sums = index[length : -_FOOTER.size - _FOOTER_CHECKSUM_SIZE]
        self._index, self._merges = end, end - _SPAN.size * merges
        self._kinds = self._merges - self.vocab_size
        self._places = self._kinds - _PLACE * (self.vocab_size + 1)
        self._starts = memoryview(self._map)[self._places : self._kinds].cast("I")
        self._is_checked = bytearray(-(-end // BLOCK))  # of each block

    def token_bytes(self, index: int) -> bytes:
        """The bytes of a token; of a control or unused token, its name."""
        if not 0 <= index < self.vocab_size:
            raise IndexError(f"{self.file}: token id: expected 0 to {self.vocab_size - 1}, got {index}")
        place = self._places + _PLACE * index
        self._check(place, place + _SPAN.size)
        self._check(self._starts[index], self._starts[index + 1])
        return self._map[self._starts[index] + _RECORD.size : self._starts[index + 1]]

    def vocabulary(self) -> Vocabulary:
        """The complete vocabulary. Raises ValueError if its fingerprint is not the one in the index."""
        self.verify()
        about = self._description
        vocabulary = Vocabulary(
            type=about["type"],
            algorithm=about["algorithm"],
            pattern=about["pattern"],
            tokens=tuple(map(self.token_bytes, range(self.vocab_size))),
            kinds=tuple(map(Kind, self._map[self._kinds : self._merges])),
            scores=tuple(_RECORD.unpack_from(self._map, start)[0] for start in self._starts[:-1]),
            merges=tuple(_SPAN.iter_unpack(self._map[self._merges : self._index])),
            steps=about.get("steps"),
            special_handling=about.get("special_handling"),
        )
        if vocabulary.fingerprint != about["fingerprint"]:
            raise self._error("its fingerprint differs from the one in its index")
        return vocabulary

    def verify(self) -> None:
        self._check(0, self._index)

    def _check(self, start: int, stop: int) -> None:
        """Check the blocks of the bytes [start, stop) that were not checked before."""
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            if not self._is_checked[block]:
                first, last = block * BLOCK, min((block + 1) * BLOCK, self._index)
                expected = self._sums[block * _CHECKSUM_SIZE : (block + 1) * _CHECKSUM_SIZE]
                if _checksum(self._map[first:last], _CHECKSUM_SIZE) != expected:
                    raise self._error(f"damaged in bytes {first} to {last - 1}")
                self._is_checked[block] = 1

    def close(self) -> None:
        self._starts.release()
        self._map.close()

    def _error(self, problem: str) -> ValueError:
        return ValueError(f"{self.file}: not a complete tokenizer.bin: {problem}: export the tokenizer anew")


def _checksum(data: bytes, size: int) -> bytes:
    return blake2b(data, digest_size=size).digest()


def greedy_unsupported_reason(vocabulary: Vocabulary) -> str | None:
    """Why merging by score gives other ids than the tokenizer's algorithm inside a piece; None if they are equal."""
    if vocabulary.steps is not None:
        return "merging by score differs: the tokenizer normalises or splits text in other ways"
    if vocabulary.added_tokens:
        return "merging by score differs: the tokenizer finds some tokens before it merges"
    if unmerged(vocabulary):
        return "merging by score differs: the tokenizer looks up complete pieces, and merges do not make all of them"
    if vocabulary.algorithm == "wordpiece":
        return "merging by score differs: the tokenizer takes the longest entry from the left, whatever its score"
    if vocabulary.algorithm == "viterbi":
        return "merging by score differs: the tokenizer takes the split with the best sum of scores"
    if vocabulary.algorithm == "lookup" and vocabulary.pattern != CHARACTERS and vocabulary.has_longer_tokens:
        return "merging by score differs: the tokenizer looks up complete pieces, and merges make few of them"
    texts = vocabulary.text_tokens
    for name, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True):
        if kind not in TEXT_KINDS and any(name[:i] in texts and name[i:] in texts for i in range(1, len(name))):
            return f"merging by score differs: two text tokens make the name of the control token {name.decode()}"
    return None
