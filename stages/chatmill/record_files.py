"""Files of records, one in each line: what `prepare` and `mix` write and all later stages read."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from chatmill.conversation import Record, parse_record, text_hash
from chatmill.pipeline.manifest import MANIFEST_NAME, check_file
from chatmill.pipeline.progress import log, progress


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


def sample_records(file: Path, max_bytes: int | None, stage: str) -> Iterator[Record]:
    """All conversations of a file of at most `max_bytes`; of a larger file, a random sample of about that size.

    The hash of each text decides whether it is sampled: the order does not matter, more bytes only add conversations,
    and all copies of a conversation are sampled or none.
    """
    records = progress(read_records(file), stage, unit=" conversations")
    size = file.stat().st_size
    yield from records if max_bytes is None or size <= max_bytes else _sample_fraction(records, max_bytes / size, stage)


def _sample_fraction(records: Iterable[Record], fraction: float, stage: str) -> Iterator[Record]:
    """The records whose hash falls into that fraction of all hashes; logs their number at the end."""
    count = num_sampled = num_bytes = sampled_bytes = 0
    for record in records:
        text = record.text.encode()
        count, num_bytes = count + 1, num_bytes + len(text)
        if text_hash(record.text) / 2**64 < fraction:
            num_sampled, sampled_bytes = num_sampled + 1, sampled_bytes + len(text)
            yield record
    sizes = f"{num_sampled:,} of {count:,} conversations, {sampled_bytes:,} of {num_bytes:,} bytes of text"
    log(stage, f"trained on {sizes}")
