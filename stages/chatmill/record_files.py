"""Files of records, one in each line: what `prepare` and `mix` write and all later stages read."""

from collections.abc import Iterator
from pathlib import Path

from chatmill.conversation import Record, parse_record
from chatmill.pipeline.manifest import MANIFEST_NAME, check_file


def read_records(file: Path) -> Iterator[Record]:
    """The records of a file that `prepare` or `mix` wrote.

    Raises ValueError with file and line for other lines, or if the manifest in its folder lists another checksum.
    """
    check_records(file)
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield parse_record(line)
            except ValueError as error:
                raise ValueError(f"{file}:{number}: {error}") from error


def check_records(file: Path) -> None:
    """Raise ValueError if the manifest in the folder of a file of records lists another checksum."""
    check_file(file, file.with_name(MANIFEST_NAME))
