r"""tokenizer.bin: a complete tokenizer in one file that is mapped, not parsed.

Little-endian, as the bytes lie (V tokens, M merges):

    u32 length of the longest token    u32 id of <|bos|>    u32 id of <|im_end|>    (of an external tokenizer:
                                                                                     their equivalents; 2^32-1: none)
    V times:  f32 score   u32 length   the token's bytes
    ---------------------------------------------------------- sequential readers (qwen3.c) stop here
    u32 x (V + 1)      offsets: where each record starts, and where the last one ends
    u8 x V             kinds
    u32 x 2 x M        merges: pairs of ids, by rank
    ---------------------------------------------------------- the index starts here
    JSON               {"algorithm": …, "controls": {name: id}, "fingerprint": …, "pattern": …, "type": …}, and
                       "steps" and "special_handling" of chatmill.tokenizer.vocabulary, if there are any
    8 bytes x B        checksums: blake2b of each 4,096 bytes before the index
    ---------------------------------------------------------- footer, 48 bytes
    8 bytes "chatmill"    u32 version    u64 where the index starts    u32 V    u32 M    u32 length of the JSON
    16 bytes              checksum: blake2b of the index and the footer up to here

Opening checks the footer and the index. The file is mapped, and each block checked, on first access.
"""

import json
import mmap
import struct
from functools import cached_property
from hashlib import blake2b
from io import FileIO
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Self

from chatmill.conversation import BOS, IM_END
from chatmill.tokenizer.formats.llama2c import RECORD_HEADER, longest_token, token_records
from chatmill.tokenizer.formats.validation import ReferenceEncoder, check_vocabulary
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary

MAGIC = b"chatmill"
VERSION = 1
BLOCK = 4096  # bytes under one checksum
NO_ID = 2**32 - 1
STARTS = (BOS, "<s>", "<|begin_of_text|>", "[CLS]", "<|endoftext|>")  # names of the token before a text, best first
ENDS = (IM_END, "<|eot_id|>", "</s>", "[SEP]", "<|endoftext|>")

_HEADER = struct.Struct("<III")
_FOOTER = struct.Struct("<8sIQIII")
_SPAN = struct.Struct("<II")  # two neighbours in the offsets: where a record starts and ends
_SCORED = RECORD_HEADER.size  # bytes of a record before the token
_CHECKSUM_SIZE, _FOOTER_CHECKSUM_SIZE = 8, 16  # bytes of a block's and of the footer's checksum


def write_binary(vocabulary: Vocabulary, file: Path) -> None:
    """Write the tokenizer; `read_binary` is the inverse. Equal vocabularies give equal bytes."""
    rows, special = token_records(vocabulary), vocabulary.special
    starts = list(accumulate(map(len, rows), initial=_HEADER.size))
    body = b"".join(
        [
            _HEADER.pack(longest_token(vocabulary), *(_first_of(special, names) for names in (STARTS, ENDS))),
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
    sums = b"".join(_checksum(body[start : start + BLOCK], _CHECKSUM_SIZE) for start in range(0, len(body), BLOCK))
    footer = _FOOTER.pack(MAGIC, VERSION, len(body), len(rows), len(vocabulary.merges), len(text))
    file.write_bytes(body + text + sums + footer + _checksum(text + sums + footer, _FOOTER_CHECKSUM_SIZE))


def _first_of(special: dict[str, int], names: tuple[str, ...]) -> int:
    return next((special[name] for name in names if name in special), NO_ID)


def read_binary(file: Path) -> Vocabulary:
    """The vocabulary in a file that `write_binary` wrote, with all checksums checked."""
    with open_binary(file) as binary:
        return binary.vocabulary()


def open_binary(file: Path) -> "BinaryTokenizer":
    """Open a tokenizer.bin and check its footer and index. Raises ValueError if they are damaged."""
    stream = FileIO(file)
    try:
        return BinaryTokenizer(file, stream)
    except ValueError:
        stream.close()
        raise


class BinaryHeader(NamedTuple):
    """The numbers before the records, for sequential readers."""

    longest_token: int
    bos: int
    eos: int


class BinaryTokenizer:
    """A mapped tokenizer.bin: any token in constant time, without reading the rest.

    Raises ValueError on first access to a damaged part.
    """

    def __init__(self, file: Path, stream: FileIO) -> None:
        self.file, self._stream = file, stream
        self._map: mmap.mmap | bytes = b""  # empty until the file is mapped
        self._read_index()
        self._checked_tokens = bytearray(self.vocab_size)  # 1 for each token whose blocks and record were checked

    @cached_property
    def header(self) -> BinaryHeader:
        """The length of the longest token in bytes, and the ids of the tokens before and after a text."""
        self._check_blocks(0, _HEADER.size)
        return BinaryHeader(*_HEADER.unpack_from(self._map))

    @property
    def special(self) -> dict[str, int]:
        """Name to id of each control token."""
        return dict(self._description["controls"])

    def token_bytes(self, index: int) -> bytes:
        """The bytes of a token; of a control or unused token, its name."""
        if not 0 <= index < self.vocab_size or not self._checked_tokens[index]:
            self._check_token(index)
        starts = self._starts
        return self._map[starts[index] + _SCORED : starts[index + 1]]

    def score(self, index: int) -> float:
        """The score of a token."""
        self._check_token(index)
        score: float = RECORD_HEADER.unpack_from(self._map, self._starts[index])[0]
        return score

    def kind(self, index: int) -> Kind:
        """What an id stands for."""
        self._check_token(index)
        return Kind(self._map[self._kinds + index])

    def vocabulary(self) -> Vocabulary:
        """The complete vocabulary. Raises ValueError if its fingerprint is not the one in the index."""
        self._check_blocks(self._merges, self._index)
        ids, about = range(self.vocab_size), self._description
        vocabulary = Vocabulary(
            type=about["type"],
            algorithm=about["algorithm"],
            pattern=about["pattern"],
            tokens=tuple(map(self.token_bytes, ids)),
            kinds=tuple(map(self.kind, ids)),
            scores=tuple(map(self.score, ids)),
            merges=tuple(_SPAN.iter_unpack(self._map[self._merges : self._index])),
            steps=about.get("steps"),
            special_handling=about.get("special_handling"),
        )
        try:
            same = vocabulary.fingerprint == about["fingerprint"]
        except UnicodeDecodeError as error:
            raise _error(self.file, f"the name of a control token is not UTF-8: {error}") from error
        if not same:
            raise _error(self.file, "its fingerprint differs from the one in its index")
        return vocabulary

    def encode(self, text: str) -> list[int]:
        """The ids of a text, by the algorithm named in the index: equal to the original tokenizer's, but slow."""
        return self._encoder.encode(text)

    @cached_property
    def _encoder(self) -> ReferenceEncoder:
        vocabulary = self.vocabulary()
        try:
            check_vocabulary(vocabulary)
        except ValueError as error:
            raise _error(self.file, str(error)) from error
        return ReferenceEncoder(vocabulary)

    def verify(self) -> None:
        """Check every block."""
        self._check_blocks(0, self._index)

    def close(self) -> None:
        """Unmap the file."""
        self._stream.close()
        if isinstance(self._map, mmap.mmap):
            self._starts.release()
            self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_index(self) -> None:
        size = self._stream.seek(0, 2)
        if size < _HEADER.size + _FOOTER.size + _FOOTER_CHECKSUM_SIZE:
            raise _error(self.file, "too short for a tokenizer")
        footer = self._read(size - _FOOTER.size - _FOOTER_CHECKSUM_SIZE, size)
        magic, version, self._index, self.vocab_size, merges, length = _FOOTER.unpack_from(footer)
        if magic != MAGIC:
            raise _error(self.file, "no footer: it is truncated, or another program's file")
        if version != VERSION:
            raise _error(self.file, f"version of the format: expected {VERSION}, got {version}")
        index = self._read(min(self._index, size), size)
        if _checksum(index[:-_FOOTER_CHECKSUM_SIZE], _FOOTER_CHECKSUM_SIZE) != index[-_FOOTER_CHECKSUM_SIZE:]:
            raise _error(self.file, "its index is damaged")
        self._merges = self._index - 8 * merges
        self._kinds = self._merges - self.vocab_size
        self._offsets = self._kinds - 4 * (self.vocab_size + 1)
        blocks = -(-self._index // BLOCK)
        if self._offsets < _HEADER.size or length + blocks * _CHECKSUM_SIZE + len(footer) != len(index):
            raise _error(self.file, "its index has an invalid size")
        self._text, self._sums = index[:length], index[length:]
        self._checked_blocks = bytearray(blocks)

    def _read(self, start: int, stop: int) -> bytes:
        self._stream.seek(start)
        return self._stream.read(stop - start)

    @cached_property
    def _description(self) -> dict[str, Any]:
        try:
            about: dict[str, Any] = json.loads(self._text)
            texts = [about[name] for name in ("type", "algorithm", "fingerprint")]
            optional = (about["pattern"], about.get("steps"), about.get("special_handling"))
            texts += [text for text in optional if text is not None]
            if not isinstance(about["controls"], dict) or not all(isinstance(text, str) for text in texts):
                raise TypeError("a value has the wrong type")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _error(self.file, f"its index is invalid ({error})") from error
        return about

    def _map_file(self) -> None:
        with self._stream as stream:
            if stream.seek(0, 2) < self._index:
                raise _error(self.file, "it was truncated after it was opened")
            self._map = mmap.mmap(stream.fileno(), self._index, access=mmap.ACCESS_READ)
        self._starts = memoryview(self._map)[self._offsets : self._kinds].cast("I")  # the offsets of the records

    def _check_token(self, index: int) -> None:
        """Check the blocks and the record of a token, unless they were checked before."""
        if not 0 <= index < self.vocab_size:
            raise IndexError(f"{self.file}: token id: expected 0 to {self.vocab_size - 1}, got {index}")
        if self._checked_tokens[index]:
            return
        offset, kind = self._offsets + 4 * index, self._kinds + index
        self._check_blocks(offset, offset + _SPAN.size)
        self._check_blocks(kind, kind + 1)
        start, stop = _SPAN.unpack_from(self._map, offset)
        if not _HEADER.size <= start <= stop - RECORD_HEADER.size <= self._offsets - RECORD_HEADER.size:
            raise _error(self.file, f"token {index} lies outside the records")
        self._check_blocks(start, stop)
        if RECORD_HEADER.unpack_from(self._map, start)[1] != stop - start - RECORD_HEADER.size or self._map[kind] > max(
            Kind
        ):
            raise _error(self.file, f"the record of token {index} is invalid")
        self._checked_tokens[index] = 1

    def _check_blocks(self, start: int, stop: int) -> None:
        """Check all blocks of the bytes [start, stop) that were not checked before."""
        if not self._map:
            self._map_file()
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            if not self._checked_blocks[block]:
                first, last = block * BLOCK, min((block + 1) * BLOCK, self._index)
                if (
                    _checksum(self._map[first:last], _CHECKSUM_SIZE)
                    != self._sums[block * _CHECKSUM_SIZE : (block + 1) * _CHECKSUM_SIZE]
                ):
                    raise _error(self.file, f"damaged in bytes {first} to {last - 1}")
                self._checked_blocks[block] = 1


def _error(file: Path, problem: str) -> ValueError:
    return ValueError(f"{file}: not a complete tokenizer.bin: {problem}: export the tokenizer anew")


def _checksum(data: bytes, size: int) -> bytes:
    return blake2b(data, digest_size=size).digest()
