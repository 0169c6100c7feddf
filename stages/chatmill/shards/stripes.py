"""Stripes that several processes have written, which are joined to one output."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from chatmill.pipeline.parts import begin_parts, finish_parts, part_file
from chatmill.pipeline.progress import progress
from chatmill.shards.workers import OrderedMap

_COPIED_AT_ONCE = 1 << 20


class Stripe(NamedTuple):
    """Complete lines of a file, from one byte to another."""

    file: Path
    start: int
    end: int

    def pieces(self) -> Iterator[bytes]:
        """Its bytes, in pieces that memory holds."""
        with self.file.open("rb") as stream:
            stream.seek(self.start)
            while left := self.end - stream.tell():
                if not (data := stream.read(min(left, _COPIED_AT_ONCE))):
                    raise OSError(f"{self.file} has become shorter while it was read")
                yield data

    def line_start(self, place: int) -> int:
        """Where the first line begins that does not begin before a place of the file; the end if there is none."""
        if not self.start < place < self.end:
            return min(max(place, self.start), self.end)
        with self.file.open("rb") as stream:
            stream.seek(place - 1)
            return place - 1 + len(stream.readline())


class _Part(NamedTuple):
    """The stripes of a part of an output."""

    file: Path
    stripes: list[Stripe]

    def __str__(self) -> str:
        return str(self.file)


def stripes_in_turn(files: Sequence[Path], starts: Sequence[Sequence[int]]) -> Iterator[Stripe]:
    """The first stripe of each file, the second of each, and so on, by where those of each file start."""
    ends = [array("q", [*own[1:], file.stat().st_size]) for file, own in zip(files, starts, strict=True)]
    for number in range(max(map(len, starts))):
        for file, own, end in zip(files, starts, ends, strict=True):
            if number < len(own) and own[number] < end[number]:
                yield Stripe(file, own[number], end[number])


def join_stripes(
    stripes: Callable[[], Iterable[Stripe]], output: Path, part_bytes: int, ordered_map: OrderedMap
) -> None:
    """Write stripes one after another to a file, or beyond `part_bytes` to a folder of parts; their files are removed.

    The parts are those that `PartsWriter` writes. Each is written by one process, as soon as `stripes` gives its own.
    """
    number_of_parts = sum(1 for _ in _parts(stripes(), part_bytes))
    begin_parts(output, number_of_parts)
    if number_of_parts == 1:
        ordered_map = map
    parts = (
        _Part(part_file(output, number, number_of_parts), part)
        for number, part in enumerate(_parts(stripes(), part_bytes))
    )
    for files in progress(ordered_map(_write, parts), f"join {output.name}", total=number_of_parts):
        for file in files:
            file.unlink()
    finish_parts(output, number_of_parts, ordered_map)


def _parts(stripes: Iterable[Stripe], part_bytes: int) -> Iterator[list[Stripe]]:
    """The stripes of each part, of which the first and last may be a share of a stripe."""
    part: list[Stripe] = []
    place, limit = 0, part_bytes
    for stripe in stripes:
        rest = stripe
        while (start := rest.line_start(rest.start + limit - place)) < rest.end:
            if start > rest.start:
                part.append(rest._replace(end=start))
            yield part
            part, place, rest = [], place + start - rest.start, rest._replace(start=start)
            limit = (place // part_bytes + 1) * part_bytes
        part.append(rest)
        place += rest.end - rest.start
    yield part


def _write(part: _Part) -> list[Path]:
    """Write a part, whose empty file is there. Returns the files of which it has the end."""
    with part.file.open("r+b") as out:  # so that an attempt that goes on beside a second one does it no harm
        for stripe in part.stripes:
            out.writelines(stripe.pieces())
    return [stripe.file for stripe in part.stripes if stripe.end == stripe.file.stat().st_size]
