"""Long arrays of numbers: .npy files, or folders of parts that are .npy files of equal length.

Such a folder is read like a file that numpy maps from disk, but what one takes from it is a copy.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chatmill.pipeline.parts import (
    PART_LIST,
    REMEDY,
    Part,
    add_part,
    begin_parts,
    damaged,
    finish_parts,
    open_part,
    read_parts,
)

_OPEN_PARTS = 64  # that are mapped at once


class PartedArray:
    """An array (N,) in parts, of which all but the last have the same length."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.parts = folder, read_parts(folder)
        self.part_length = self.parts[0].records
        *full, last = (part.records for part in self.parts)
        if {*full} - {self.part_length} or not 0 < last <= self.part_length:
            raise ValueError(f"{folder / PART_LIST}: its parts have different lengths: {REMEDY}")
        self._length = sum(part.records for part in self.parts)
        self._mapped: OrderedDict[int, NDArray[Any]] = OrderedDict()
        self.dtype = self._part(0).dtype

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, key: int | slice | NDArray[np.integer[Any]]) -> Any:
        if isinstance(key, slice):
            start, stop, step = key.indices(self._length)
            return self._between(start, stop)[::step] if step > 0 else np.asarray(self)[key]
        if isinstance(key, np.ndarray):
            places = np.flatnonzero(key) if key.dtype == bool else key
            return self._gather(np.where(places < 0, places + self._length, places))
        return self._between(range(self._length)[key], range(self._length)[key] + 1)[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array: NDArray[Any] = self[:]
        return array if dtype is None else array.astype(dtype)

    def astype(self, dtype: Any) -> NDArray[Any]:
        """All of it in memory, as this type."""
        return np.asarray(self).astype(dtype)

    def _between(self, start: int, stop: int) -> NDArray[Any]:
        found = []
        while start < stop:
            number, place = divmod(start, self.part_length)
            found.append(self._part(number)[place : place + stop - start])
            start += len(found[-1])
        return np.concatenate(found) if found else np.empty(0, self.dtype)

    def _gather(self, places: NDArray[np.integer[Any]]) -> NDArray[Any]:
        result, numbers = np.empty(places.shape, self.dtype), places // self.part_length
        for number in np.unique(numbers):
            chosen = numbers == number
            result[chosen] = self._part(int(number))[places[chosen] - number * self.part_length]
        return result

    def _part(self, number: int) -> NDArray[Any]:
        if number not in self._mapped:
            part = self.parts[number]
            with open_part(self.folder, part) as stream:
                self._mapped[number] = _map_part(stream, part.records, self.folder / part.name)
            if len(self._mapped) > _OPEN_PARTS:
                self._mapped.popitem(last=False)
        self._mapped.move_to_end(number)
        return self._mapped[number]


LongArray = NDArray[Any] | PartedArray


def open_array(file: Path) -> LongArray:
    """The array of a file, mapped from disk, or of a folder of parts."""
    return PartedArray(file) if file.is_dir() else np.load(file, mmap_mode="r")


def _map_part(stream: Any, length: int, name: Path) -> NDArray[Any]:
    try:
        array = _map(stream)
    except ValueError as error:
        raise damaged(name) from error
    if array.shape != (length,):
        raise damaged(name)
    return array


def _map(stream: Any) -> NDArray[Any]:
    """The array of an open .npy file; it remains readable where the file is deleted."""
    np.lib.format.read_magic(stream)
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.hasobject:
        raise ValueError("not an array of numbers")
    return np.memmap(stream, dtype, "r", stream.tell(), shape)


class ArrayWriter:
    """Writes an array (N,) in the order in which it comes, beyond `part_length` as a folder of parts.

    Used in a `with` statement; `ordered_map` computes the checksums of parts. The header of a file is written again
    when its length is known.
    """

    def __init__(
        self, output: Path, dtype: type[np.generic], part_length: int, ordered_map: Callable[..., Iterable[Part]] = map
    ) -> None:
        self.output, self.dtype, self.part_length, self.length = output, np.dtype(dtype), part_length, 0
        self._count, self._ordered_map = 1, ordered_map
        begin_parts(output, 1)

    def __enter__(self) -> "ArrayWriter":
        self._stream = self.output.open("r+b")
        self._write_header(0)
        return self

    def append(self, values: NDArray[Any]) -> None:
        """Write some numbers."""
        while len(values):
            if self.length == self._count * self.part_length:
                self._begin_part()
            room = self._count * self.part_length - self.length
            self._stream.write(np.ascontiguousarray(values[:room], self.dtype).data)
            self.length += len(values[:room])
            values = values[room:]

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._end_part()
        if kind is None:
            finish_parts(self.output, self._count, self._ordered_map, count_records=_length_of)

    def _begin_part(self) -> None:
        self._end_part()
        self._stream = add_part(self.output, self._count).open("w+b")
        self._count += 1
        self._write_header(0)

    def _end_part(self) -> None:
        self._stream.seek(0)
        self._write_header(self.length - (self._count - 1) * self.part_length)
        self._stream.close()

    def _write_header(self, length: int) -> None:
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (length,)}
        np.lib.format.write_array_header_1_0(self._stream, header)  # its size does not depend on the length


def _length_of(file: Path) -> int:
    with file.open("rb") as stream:
        return len(_map(stream))
