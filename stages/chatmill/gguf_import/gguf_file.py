"""A GGUF file: its fields, and its tensors, which are read when they are asked for.

Little-endian, as the bytes lie; a string is a u64 length and UTF-8:

    "GGUF", u32 version, u64 number of tensors, u64 number of fields
    each field:   string name, u32 type, the value; of an array: u32 type of its values, u64 length, the values
    each tensor:  string name, u32 number of dimensions, a u64 for each, the innermost first, u32 type, u64 offset
    zeros up to a multiple of `general.alignment`, from where the offsets count; then the numbers of the tensors
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from numpy.typing import NDArray
from torch import Tensor

from chatmill.checkpoints.weights import MAX_TENSORS

MAGIC, VERSIONS = b"GGUF", (2, 3)
MAX_FIELDS, MAX_DIMENSIONS = 1 << 12, 4
ALIGNMENT = "general.alignment"
_STRING, _ARRAY = 8, 9
_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))  # struct's letters
_PLAIN: dict[int, Any] = {GGMLQuantizationType.F32: np.dtype("<f4"), GGMLQuantizationType.F16: np.dtype("<f2")}


class Place(NamedTuple):
    """Where a tensor lies in a file."""

    shape: tuple[int, ...]  # the outermost dimension first
    type: GGMLQuantizationType
    start: int
    size: int  # bytes


@dataclass(frozen=True)
class GGUFFile:
    """The fields and tensors of a file by name; the file is mapped, and no tensor is read yet."""

    fields: dict[str, Any]  # numbers, bool, str, and lists of these
    places: dict[str, Place]
    data: NDArray[np.uint8]

    def tensor(self, name: str) -> Tensor:
        """A tensor in float32, or as it is mapped from the file where it is float32 or float16.

        Raises ValueError for a type that the package gguf cannot read.
        """
        place = self.places[name]
        stored = self.data[place.start : place.start + place.size]
        if (dtype := _PLAIN.get(place.type)) is not None:
            return torch.from_numpy(stored.view(dtype).reshape(place.shape))
        try:
            values = quants.dequantize(np.asarray(stored), place.type)
        except NotImplementedError as error:
            raise ValueError(f"its tensor {name:.80} is {place.type.name}: expected f32, f16, q8_0 or q4_0") from error
        return torch.from_numpy(values.reshape(place.shape))


class _Cursor:
    """Reads values one after another. Raises ValueError where the file ends before."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.place = data, 0

    def numbers(self, letters: str) -> tuple[Any, ...]:
        layout = struct.Struct(f"<{letters}")
        self.check(layout.size)
        found = layout.unpack_from(self.data, self.place)
        self.place += layout.size
        return found

    def string(self) -> str:
        (length,) = self.numbers("Q")
        self.check(length)
        self.place += length
        return str(self.data[self.place - length : self.place], "utf-8")

    def value(self, type: int, *, in_array: bool = False) -> Any:
        if type == _STRING:
            return self.string()
        if type in _NUMBERS:
            return self.numbers(_NUMBERS[type])[0]
        if type != _ARRAY or in_array:
            raise ValueError(f"a value of type {type}, which GGUF does not have here")
        kind, length = self.numbers("IQ")
        if kind in _NUMBERS:
            self.check(length)  # a byte for each at least
            return list(self.numbers(f"{length}{_NUMBERS[kind]}"))
        self.check(8 * length)
        return [self.value(kind, in_array=True) for _ in range(length)]

    def check(self, size: int) -> None:
        if size > len(self.data) - self.place:
            raise ValueError(f"it ends after {len(self.data):,} bytes, where {self.place + size:,} are expected")


def is_gguf(file: Path) -> bool:
    """Whether a file begins as GGUF files do."""
    with file.open("rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


def read_gguf(file: Path) -> GGUFFile:
    """Read the fields and the list of tensors. Raises ValueError for a damaged file, or one of another version."""
    if not is_gguf(file):
        raise ValueError(f"{file}: not a GGUF file")
    data: NDArray[np.uint8] = np.memmap(file, np.uint8, mode="c")
    try:
        return GGUFFile(*_read_header(_Cursor(data.data)), data)
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: a damaged GGUF file: {error}") from error


def _read_header(cursor: _Cursor) -> tuple[dict[str, Any], dict[str, Place]]:
    _, version, num_tensors, num_fields = cursor.numbers("4sIQQ")
    if version not in VERSIONS:
        raise ValueError(f"version {version}: expected 2 or 3, little-endian")
    if num_tensors > MAX_TENSORS or num_fields > MAX_FIELDS:
        limits = f"at most {MAX_TENSORS:,} and {MAX_FIELDS:,}"
        raise ValueError(f"{num_tensors:,} tensors and {num_fields:,} fields: expected {limits}")
    fields: dict[str, Any] = {}
    for _ in range(num_fields):
        name = cursor.string()
        if name in fields:
            raise ValueError(f"it has the field {name:.80} twice")
        fields[name] = cursor.value(*cursor.numbers("I"))
    listed = dict(_tensors(cursor, num_tensors))
    if len(listed) < num_tensors:
        raise ValueError("it has a tensor twice")
    alignment = fields.get(ALIGNMENT, 32)
    if type(alignment) is not int or alignment < 1:
        raise ValueError(f"{ALIGNMENT} {alignment!r:.40}: expected a number above 0")
    begin = math.ceil(cursor.place / alignment) * alignment
    places = {name: place._replace(start=begin + place.start) for name, place in listed.items()}
    _check_places(places, len(cursor.data))
    return fields, places


def _tensors(cursor: _Cursor, count: int) -> Iterator[tuple[str, Place]]:
    for _ in range(count):
        name, (dimensions,) = cursor.string(), cursor.numbers("I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise ValueError(f"its tensor {name:.80} has {dimensions} dimensions")
        shape = cursor.numbers(f"{dimensions}Q")
        type, start = cursor.numbers("IQ")
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(type)]
        if 0 in shape or shape[0] % block:
            raise ValueError(f"its tensor {name:.80} has the shape {shape[::-1]}")
        place = Place(shape[::-1], GGMLQuantizationType(type), start, math.prod(shape) // block * block_bytes)
        yield name, place


def _check_places(places: dict[str, Place], size: int) -> None:
    """Raise ValueError where tensors reach beyond the file, or into each other, which would take more memory."""
    ordered = sorted(places.items(), key=lambda item: item[1].start)
    for (name, place), (_, following) in pairwise(ordered):
        if place.start + place.size > following.start:
            raise ValueError(f"its tensor {name:.80} reaches into another one")
    for name, place in ordered:
        if place.start + place.size > size:
            raise ValueError(f"its tensor {name:.80} ends at {place.start + place.size:,} of {size:,} bytes")
