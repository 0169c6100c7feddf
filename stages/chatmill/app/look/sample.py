"""Takes a sample of a dataset: what its files are, and some of their entries."""

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from chatmill.datasets.formats.containers import files_of, object_rows, pyarrow_errors, rows_of
from chatmill.datasets.formats.example import Reject, num_bytes
from chatmill.datasets.formats.row_readers import PACKED, inner_suffix, json_entries, open_decompressed, separator_of

# Tells what a file is, by its name and its first bytes.


class Container(Enum):
    JSON_LINES = "JSON lines"
    JSON_ARRAY = "a JSON array"
    JSON_OBJECT = "a JSON object"
    JSON_OBJECTS = "JSON objects"
    JSON_ROWS = "a JSON object of rows"
    CSV = "CSV"
    TSV = "TSV"
    PARQUET = "Parquet"
    ARROW = "Arrow"
    TEXT = "plain text"
    MARKDOWN = "Markdown"
    YAML = "YAML"


_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_WITH_HEADER = (Container.CSV, Container.TSV)
_BY_SUFFIX = {
    ".csv": Container.CSV,
    ".tsv": Container.TSV,
    ".txt": Container.TEXT,
    ".text": Container.TEXT,
    ".md": Container.MARKDOWN,
    ".yaml": Container.YAML,
    ".yml": Container.YAML,
}
_UNREADABLE = {
    b"PK\x03\x04": "a ZIP archive, or a document of an office program: unpack it, or save it as CSV",
    b"%PDF": "a PDF: convert it to text, as by pdftotext",
    b"SQLite": "an SQLite database: export its rows as CSV or JSON lines",
    b"BZh": "compressed by bzip2: unpack it",
    b"\xfd7zXZ": "compressed by xz: unpack it",
    b"\x80\x04": "a Python pickle, which could run code: save its rows as JSON lines",
}


class FileKind(NamedTuple):
    container: Container
    separator: str = ""  # of a table, such as `commas`
    compression: str = ""  # such as `gzip`

    @property
    def content(self) -> "FileKind":
        """The kind of what it holds, compressed or not."""
        return self._replace(compression="")

    @property
    def is_text(self) -> bool:
        return self.container in (Container.TEXT, Container.MARKDOWN)

    @property
    def is_json(self) -> bool:
        return self.container.name.startswith("JSON")


def kind_of(file: Path) -> FileKind:
    """What a file is. Raises ValueError for one that no reader reads."""
    with open_decompressed(file) as stream:
        start = stream.read(1 << 16)
    container = _container(file, start)
    separator = _SEPARATORS[separator_of(file)] if container in _WITH_HEADER else ""
    return FileKind(container, separator, PACKED.get(file.suffix, ""))


def in_words(kinds: Iterable[FileKind]) -> str:
    """The kinds of files as one: `plain text and Markdown, some compressed by gzip`."""
    kinds = list(kinds)
    words = [" and ".join(sorted({kind.container.value for kind in kinds}, reverse=True))]
    if separators := sorted({kind.separator for kind in kinds} - {""}):
        words.append(f"separated by {' and '.join(separators)}")
    if compressions := sorted({kind.compression for kind in kinds} - {""}):
        some = "" if all(kind.compression for kind in kinds) else "some "
        words.append(f"{some}compressed by {' and '.join(compressions)}")
    return ", ".join(words)


def _container(file: Path, start: bytes) -> Container:
    suffix = inner_suffix(file).lower()
    if reason := next((reason for mark, reason in _UNREADABLE.items() if start.startswith(mark)), None):
        raise ValueError(f"{file}: {reason}")
    if not start.strip():
        raise ValueError(f"{file}: empty: expected conversations or texts")
    if start.startswith(b"PAR1") or suffix == ".parquet":
        return Container.PARQUET
    if start.startswith(b"ARROW1") or suffix in (".arrow", ".feather"):
        return Container.ARROW
    if b"\x00" in start:
        raise ValueError(f"{file}: binary data that no reader knows: save it as JSON lines, CSV, Parquet or text")
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix]
    return _json_container(file, start)


def _json_container(file: Path, start: bytes) -> Container:
    """How the values of a JSON file stand beside each other. Raises ValueError where it is no JSON."""
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        lines = text.split(b"\n", 2)
        is_lines = len(lines) > 2 and lines[0].rstrip().endswith(b"]") and lines[1].startswith(b"[")
        return Container.JSON_LINES if is_lines else Container.JSON_ARRAY
    suffix = inner_suffix(file).lower()
    if suffix == ".json" and object_rows(file) is not None:
        return Container.JSON_ROWS
    is_named_lines = suffix in (".jsonl", ".ndjson")
    is_line = text.startswith(b"{") and b"\n" not in text.rstrip() and not is_named_lines
    if re.match(rb"\{\s*\r?\n", text) or is_line:
        with open_decompressed(file) as stream:
            is_several = re.search(rb"\n\}\s*\n?\{", stream.read(1 << 20)) is not None
        return Container.JSON_OBJECTS if is_several else Container.JSON_OBJECT
    if not text.startswith((b"{", b'"')):
        raise ValueError(
            f"{file}: no JSON, and its name does not say what else: name a table .csv or .tsv, a text .txt"
        )
    return Container.JSON_LINES


def ending(file: Path) -> str:
    """The end of a name, which says what a file is and how it is compressed, such as `.jsonl.gz`."""
    return inner_suffix(file) + (file.suffix if file.suffix in PACKED else "")


# Reads some entries of files of any size: from the beginning, and where that is cheap from the middle and the end.

MAX_ENTRIES = 500  # of the beginning of a file
MAX_BYTES = 3_000_000  # of the entries of a file, about
MAX_FILES = 9  # of a folder, of which entries are read
_MAX_KINDS = 200  # files of a folder that are opened to see what they are
_TEXT_BYTES = 300_000  # from the beginning of a text file


@dataclass
class Sample:
    """The files that are looked at, and what was read of them."""

    path: Path
    kind: FileKind  # of what the files hold
    kinds: set[FileKind]  # of the files themselves, some of which may be compressed
    files: list[Path]
    others: list[Path] = field(default_factory=list)  # in the folder
    read: list[Path] = field(default_factory=list)  # of them, those of which the beginning was read
    rows: list[Any] = field(default_factory=list)  # of the beginnings, parsed; of text its paragraphs
    entries: int = 0  # of all files, of text its lines; about, unless these were all read
    is_complete: bool = False
    errors: dict[Path, str] = field(default_factory=dict)  # of files in the folder that cannot be read
    limit: int = MAX_ENTRIES  # of the entries of a file

    @property
    def bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)


def take_sample(path: Path) -> Sample:
    """A sample of a file, or of those files of a folder whose content has the most bytes.

    Raises ValueError for files that cannot be read.
    """
    every = files_of(path)
    opened = evenly(every, _MAX_KINDS)
    kinds, errors = _kinds(opened)
    contents = _contents(kinds)
    sizes = Counter[FileKind]()
    for file, content in contents.items():
        sizes[content] += file.stat().st_size
    data = [content for content in sizes if content.container not in (Container.MARKDOWN, Container.YAML)]
    chosen = max(data or sizes, key=lambda content: sizes[content])
    taken = [file for file, content in contents.items() if content == chosen]
    endings = {ending(file) for file in taken}
    alike = {file for file in every if ending(file) in endings}.difference(opened)
    files = [file for file in every if file in alike or contents.get(file) == chosen]
    sample = Sample(path, chosen, {kinds[file] for file in taken}, files, errors=errors)
    fill(sample, every)
    return sample


def _contents(kinds: dict[Path, FileKind]) -> dict[Path, FileKind]:
    """What the files hold, compressed or not. Several Markdown files are text, a single one may describe the data."""
    contents = {file: kind.content for file, kind in kinds.items()}
    text, markdown = FileKind(Container.TEXT), FileKind(Container.MARKDOWN)
    if text in contents.values() and sum(content == markdown for content in contents.values()) > 1:
        return {file: text if content == markdown else content for file, content in contents.items()}
    return contents


def _kinds(files: list[Path]) -> tuple[dict[Path, FileKind], dict[Path, str]]:
    """What the files are, and what is wrong with others. Raises ValueError where none can be read."""
    kinds, errors = {}, {}
    for file in files:
        try:
            kinds[file] = kind_of(file)
        except ValueError as error:
            errors[file] = str(error)
    if not kinds:
        raise ValueError(next(iter(errors.values())))
    return kinds, errors


def evenly(files: list[Path], count: int) -> list[Path]:
    step = max(1, (len(files) - 1) / max(1, count - 1))
    return [files[round(i * step)] for i in range(min(count, len(files)))]


def fill(sample: Sample, every: list[Path]) -> None:
    """Read the beginnings of the sample's files; `every` is all files of the folder."""
    sample.others = [file for file in every if file not in {*sample.files}]
    sample.read = evenly(sample.files, MAX_FILES)
    sample.rows = []
    if sample.kind.is_text:
        _read_text(sample)
    else:
        _read_rows(sample)


def _read_text(sample: Sample) -> None:
    texts = [first_text(file) for file in sample.read]
    sample.rows = [paragraph for text in texts for paragraph in paragraphs_of(text)]
    count = sum(text.count("\n") + (not text.endswith("\n")) for text in texts)
    size, sizes = sum(map(num_bytes, texts)), [_unpacked_bytes(file) for file in sample.files]
    sample.is_complete = len(sample.files) <= MAX_FILES and max(sizes) < _TEXT_BYTES
    sample.entries = count if sample.is_complete else round(sum(sizes) * count / max(1, size))
    sample.limit = max(20, min(MAX_ENTRIES, MAX_BYTES * count // max(1, size)) // len(sample.read))


def _read_rows(sample: Sample) -> None:
    most = MAX_ENTRIES if len(sample.read) < 4 else max(30, MAX_ENTRIES // len(sample.read))
    size, is_complete = 0, len(sample.files) <= MAX_FILES
    for file in sample.read:
        rows = _rows(file, sample.kind)
        for row in islice(rows, most):
            sample.rows.append(row)
            size += _size(row, with_keys=sample.kind.is_json)
            if size > MAX_BYTES:
                break
        is_complete = is_complete and next(rows, None) is None
    count = len(sample.rows)
    sample.limit = min(most, max(20, MAX_BYTES * count // max(1, size))) if count else most
    sample.is_complete = is_complete
    sample.entries = count if is_complete else _estimate(sample, count, size)


def first_rows(file: Path, kind: FileKind, count: int) -> list[Any]:
    return paragraphs_of(first_text(file)) if kind.is_text else list(islice(_rows(file, kind), count))


def _rows(file: Path, kind: FileKind) -> Iterator[Any]:
    if kind.container == Container.JSON_OBJECT:
        entries = (entry for entry in json_entries(file) if not isinstance(entry, Reject))
        return ({key: value} for _, key, value in entries)
    if kind.container == Container.YAML:
        return iter(())
    return (row[1] for row in rows_of(file) if not isinstance(row, Reject))


def first_text(file: Path) -> str:
    """The first lines of a text file. Raises ValueError where they are not UTF-8."""
    with open_decompressed(file) as stream:
        block = stream.read(_TEXT_BYTES)
    complete = block[: block.rfind(b"\n") + 1] if len(block) == _TEXT_BYTES and b"\n" in block else block
    try:
        text = complete.decode("utf-8-sig", "ignore" if b"\n" not in block else "strict")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 at byte {error.start}: convert it, as by iconv -t utf-8") from error
    return text.replace("\r\n", "\n")


def paragraphs_of(text: str) -> list[str]:
    return [paragraph for paragraph in re.split(r"\n(?:[ \t]*\n)+", text) if paragraph.strip()]


def _size(value: Any, *, with_keys: bool) -> int:
    """The bytes of the texts in a value, and of keys if they are said in each row, and a few for all else."""
    size, rest = 0, [value]
    while rest:  # values may be nested deeper than calls
        item = rest.pop()
        if isinstance(item, str):
            size += num_bytes(item)
        elif isinstance(item, dict):
            size += sum(len(str(key)) + 6 if with_keys else 1 for key in item)
            rest += item.values()
        elif isinstance(item, list):
            size += 2
            rest += item
        else:
            size += 4
    return size


def _estimate(sample: Sample, count: int, size: int) -> int:
    """The number of entries of all files, by the bytes of those that were read."""
    container, file = sample.kind.container, sample.files[0]
    if container == Container.PARQUET:
        return sum(map(_parquet_rows, sample.files))
    if container == Container.JSON_LINES and len(sample.files) == 1:
        with open_decompressed(file) as stream:
            size = sum(len(stream.readline()) for _ in range(count))
    return max(count, round(sum(map(_unpacked_bytes, sample.files)) * count / max(1, size)))


def _unpacked_bytes(file: Path) -> int:
    """The bytes of a file when it is unpacked, about: by how its first ones are packed."""
    size = file.stat().st_size
    if file.suffix not in PACKED:
        return size
    with open_decompressed(file) as stream:
        start = stream.read(1 << 20)
    return round(size * len(start) / max(1, len(zlib.compress(start, 6))))


def _parquet_rows(file: Path) -> int:
    with pyarrow_errors(file, "a Parquet"):
        from pyarrow import parquet

        return int(parquet.read_metadata(file).num_rows)
