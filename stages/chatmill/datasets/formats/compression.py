"""Reads .gz and .zst files as they are, with little memory, and refuses decompression bombs."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from chatmill.pipeline.parts import PART_LIST, open_parts

PACKED = {".gz": "gzip", ".zst": "zstd"}  # suffixes of names
MAX_RATIO = 200  # of unpacked to packed bytes; text has 3 to 20, and one line again and again up to 1,000
FREE_BYTES = 32 << 20  # unpacked, before the ratio matters
UTF_16 = "UTF-16: convert it to UTF-8, as by iconv -f utf-16 -t utf-8"
_PACKED_BYTES = 1 << 10  # that are unpacked at once, to at most 32 MiB: a zstd block of 4 bytes holds 128 KiB


def inner_suffix(file: Path) -> str:
    """The last suffix of a name that does not say how the file is compressed; empty if there is none."""
    return next((suffix for suffix in reversed(file.suffixes) if suffix not in PACKED), "")


@contextmanager
def open_decompressed(file: Path) -> Iterator[io.BufferedReader]:
    """The bytes of a file, unpacked if its name ends in .gz or .zst, or those of its parts.

    Raises ValueError with file and byte for a damaged file, and for one that unpacks to over FREE_BYTES and MAX_RATIO
    times the bytes read of it; Utf16Error for text that begins with the mark of UTF-16.
    """
    with open_parts(file) if (file / PART_LIST).is_file() else file.open("rb") as packed:
        try:
            stream = _unpacked(file, packed)
            if stream.peek(2)[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise Utf16Error(f"{file}: {UTF_16}")
            yield stream
        except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
            place = f"{error}, near byte {packed.tell():,}"
            raise ValueError(f"{file}: damaged, or not a {file.suffix} file: {place}") from error
        except _TooLargeError as error:
            raise ValueError(
                f"{file}: its first {packed.tell():,} bytes unpack to over {MAX_RATIO} times as many: if it is no "
                "decompression bomb, unpack it and read the unpacked file"
            ) from error


def _unpacked(file: Path, packed: io.BufferedReader) -> io.BufferedReader:
    if file.suffix == ".gz":
        return io.BufferedReader(_Bounded(gzip.GzipFile(fileobj=packed), packed), 1 << 20)
    if file.suffix == ".zst":
        return io.BufferedReader(_Bounded(_Zstandard(packed), packed), 1 << 20)
    return packed


class Utf16Error(ValueError):
    """Raised for text in UTF-16."""


class _TooLargeError(Exception):
    """A file unpacks to improbably many bytes."""


class _Bounded(io.RawIOBase):
    """The bytes of a stream, as long as they are not too many for the bytes that it has read of the packed file."""

    def __init__(self, stream: gzip.GzipFile | io.RawIOBase, packed: BinaryIO) -> None:
        self._stream, self._packed, self._count = stream, packed, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._stream.readinto(buffer) or 0
        self._count += count
        if self._count > max(FREE_BYTES, MAX_RATIO * self._packed.tell()):
            raise _TooLargeError
        return count


class _Zstandard(io.RawIOBase):
    """Decompressed bytes; unlike the reader of zstandard it raises EOFError for a truncated file."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame = self._decompressor.decompressobj()
        self._started = False
        self._ready = io.BytesIO()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not (count := self._ready.readinto(buffer)):
            data = self._frame.unused_data or self._packed.read(_PACKED_BYTES)
            if self._frame.eof:
                self._frame, self._started = self._decompressor.decompressobj(), False
            if not data:
                if self._started:
                    raise EOFError("truncated within a frame")
                return 0
            self._ready, self._started = io.BytesIO(self._frame.decompress(data)), True
        return count
