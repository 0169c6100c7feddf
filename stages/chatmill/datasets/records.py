"""The records of a dataset: its conversations, repaired and checked, and what is left out."""

import re
import sys
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from pydantic_core import to_json

from chatmill.conversation import (
    IM_END,
    IM_START,
    Conversation,
    Record,
    check_turns,
    declared_tools,
    escape,
    is_document,
    parse,
    render,
)
from chatmill.datasets.formats.containers import files_of
from chatmill.datasets.formats.example import (
    Document,
    Example,
    Extent,
    Reject,
    Turn,
    extent_of,
    num_bytes,
    total_extent,
)
from chatmill.datasets.formats.registry import Dataset, open_dataset
from chatmill.datasets.formats.row_readers import inner_suffix
from chatmill.datasets.repair import Tally, repair
from chatmill.datasets.source_parameters import SourceParameters
from chatmill.datasets.split import on_side, question_group
from chatmill.pipeline.parts import PartsWriter, size_of
from chatmill.pipeline.progress import progress
from chatmill.shards.stripes import join_stripes, stripes_in_turn
from chatmill.shards.workers import available_workers, worker_pool

MAX_MESSAGE_BYTES = 1_000_000
MAX_RUN = 50_000  # equal characters, or whitespace; encode refuses 100,000, with what a template puts around a message
_RUN = re.compile(r"\s{16,}|(.)\1{15,}", re.DOTALL)
_REASONS = {"role out of order": "role_order", "empty turn": "empty_turn", "no answer": "no_answer"}


def records(source: str, parameters: SourceParameters, tally: Tally) -> Iterator[Record | Reject]:
    """The conversations of a dataset as records, and a reject for each invalid entry and each part that is left out."""
    dataset = dataset_of(parameters)
    for row in dataset.rows:
        yield from entries_of(dataset.item(row), source, parameters, tally)


def dataset_of(parameters: SourceParameters) -> Dataset:
    """The dataset that the parameters name."""
    return open_dataset(
        parameters.path,
        parameters.format,
        limit=parameters.limit,
        seed=parameters.seed,
        mapping=parameters.mapping,
        files=parameters.patterns,
    )


def entries_of(
    item: Example | Document | Reject, source: str, parameters: SourceParameters, tally: Tally
) -> Iterator[Record | Reject]:
    """The record or the reject of an entry, and the parts that are left out, all counted."""
    for entry in _entries(item, source, parameters, tally):
        if isinstance(entry, Reject):
            tally.reject(entry)
        yield entry


def _entries(
    item: Example | Document | Reject, source: str, parameters: SourceParameters, tally: Tally
) -> Iterator[Record | Reject]:
    """The record or the reject of an entry, and the parts that are left out."""
    if isinstance(item, Reject):
        tally.read(Extent(item.messages, item.bytes))
        yield item
        return
    if isinstance(item, Document):
        yield _document(item, source, parameters, tally)
        return
    extent = extent_of(item.turns)
    if item.dropped:
        extent = total_extent([extent, *(part.extent for part in item.dropped)])
    tally.read(extent)
    repaired = repair(item.turns, parameters.rules)
    entry = _record(item, repaired.turns, source, parameters)
    if isinstance(entry, Reject):
        yield Reject(entry.place, entry.reason, entry.detail, *extent)
        return
    parts = [*item.dropped, *repaired.dropped]
    tally.keep(extent_of(repaired.turns) if parts or repaired.rules else extent, (*repaired.rules, *item.notes))
    yield entry
    for part in parts:
        yield Reject(item.place, part.reason, part.detail, *part.extent, part=True)


def _record(item: Example, turns: Sequence[Turn], source: str, parameters: SourceParameters) -> Record | Reject:
    conversation = [turn.message for turn in turns]
    try:
        if turns is not item.turns:  # else it is regular
            check_turns(conversation, opening=parameters.rules.assistant_first == "keep")
    except ValueError as error:
        reason = next(reason for start, reason in _REASONS.items() if str(error).startswith(start))
        return Reject(item.place, reason, str(error))
    text = render(conversation)
    if problem := _text_problem(text, conversation):
        return Reject(item.place, *problem)
    train = _trained(turns, parameters.mask_history)
    if train and not any(train[i] is not False for i, turn in enumerate(turns) if turn.message.role == "assistant"):
        return Reject(item.place, "not_trained", "no message of the assistant is trained")
    group = item.group or question_group(text)
    side = parameters.side
    return Record(source, on_side(group, side) if side else group, text, item.skill, train)


def _document(item: Document, source: str, parameters: SourceParameters, tally: Tally) -> Record | Reject:
    """The record of a document, which is counted as one message."""
    extent, text = Extent(1, num_bytes(item.text)), escape(item.text)
    tally.read(extent)
    problem = _text_problem(text, []) if text.strip() else ("empty_document", "no text but white space")
    if problem:
        return Reject(item.place, *problem, *extent)
    tally.keep(extent, ())
    return Record(source, on_side(item.group, parameters.side) if parameters.side else item.group, text)


def _text_problem(text: str, conversation: Conversation) -> tuple[str, str] | None:
    """Reason and detail of text that no model can be trained on."""
    try:
        too_long = len(text.encode()) > MAX_MESSAGE_BYTES and _longest(conversation) > MAX_MESSAGE_BYTES
    except UnicodeEncodeError as error:
        before = text[: error.start].rpartition(IM_START)[2].partition("\n")
        where = f"character {len(before[2]) + 1} of a message of the {before[0]}"
        where = f"character {error.start + 1}" if is_document(text) else where
        return "not_utf8", _surrogate_problem(text[error.start], where)
    if too_long:
        return "too_long", f"message longer than {MAX_MESSAGE_BYTES:,} bytes"
    if len(text) > MAX_RUN and len(run := _longest_run(text)) > MAX_RUN:
        what = "whitespace characters" if run.isspace() else f"times {run[0]!r}"
        return "long_run", f"a run of {len(run):,} {what}: expected at most {MAX_RUN:,}"
    return None


def _surrogate_problem(surrogate: str, where: str) -> str:
    """The detail of half a character, which of a table may be a byte (`row_readers.table_rows`)."""
    half = f"half a character (the surrogate {surrogate!a})"
    if not "\udc80" <= surrogate <= "\udcff":
        return f"{half} at {where}"
    byte = f"byte 0x{ord(surrogate) - 0xDC00:02x} of a table that is not UTF-8, or {half},"
    return f"{byte} at {where}: convert the file, as by iconv -f cp1252 -t utf-8"


def _trained(turns: Sequence[Turn], mask_history: bool) -> list[bool | None] | None:
    """Which messages are trained, where that does not follow from their roles; None for those of which it does."""
    if not mask_history and all(turn.train is None for turn in turns):
        return None  # faster
    flags = [turn.train for turn in turns]
    answers = [i for i, turn in enumerate(turns) if turn.message.role == "assistant"]
    for i in answers[:-1] if mask_history else ():
        flags[i] = False
    for i in answers:
        flags[i] = flags[i] and None  # trained, as its role
    return flags if any(flag is not None for flag in flags) else None


def _longest(conversation: Conversation) -> int:
    return max((sum(num_bytes(part.text) for part in message.parts) for message in conversation), default=0)


def _longest_run(text: str) -> str:
    """The longest run of equal characters or of whitespace; empty if none has 16."""
    return max((match[0] for match in _RUN.finditer(text)), key=len, default="")


# Writes the conversations of a dataset and its rejects, with several processes where the dataset is large.

LARGE_BYTES = 32_000_000  # of files, of which a process more saves more than its start takes
FIRST_REJECTS = 5  # of each reason, that are kept for messages
MAX_UNKNOWN_ROLES = 1000  # combinations that are counted
_MAX_PROCESSES = 8  # more would mostly read
_STRIPE_ROWS = 256
_FILE_BITS = 40  # of the number of a row in a file
_ONE_READER = {".parquet", ".arrow", ".feather", ".json"}  # of which each reader may hold over 100 MB


@dataclass(frozen=True)
class Share:
    """One of `count` shares of the rows: those of a file, or else stripes of those of the dataset."""

    number: int = 0
    count: int = 1
    file: Path | None = None

    def __str__(self) -> str:
        return str(self.file) if self.file else f"share {self.number + 1} of {self.count} of its rows"

    def has(self, row: int) -> bool:
        """Whether a row, counted from 0, belongs to it."""
        return self.file is not None or row // _STRIPE_ROWS % self.count == self.number

    def place(self, row: int) -> int:
        """A number for a row by which those of all shares are in order."""
        return row if self.file is None else row + (self.number << _FILE_BITS)


@dataclass
class Written:
    """The number of records that were written, and what is to be told about the others."""

    records: int = 0
    reasons: Counter[str] = field(default_factory=Counter)  # of complete entries
    first: dict[str, list[tuple[int, Reject]]] = field(default_factory=dict)  # rejects by reason, with their rows
    tools: Counter[str] = field(default_factory=Counter)  # conversations that declare them
    unknown_roles: Counter[str] = field(default_factory=Counter)  # by what is said of them
    tally: Tally = field(default_factory=Tally)

    def add_record(self, record: Record) -> None:
        """Count a record."""
        self.records += 1
        for name in tools_of(record):
            self.tools[name] += 1

    def add_reject(self, row: int, reject: Reject) -> None:
        """Count a reject."""
        if not reject.part:
            self.reasons[reject.reason] += 1
        if reject.reason == "unknown_role" and len(self.unknown_roles) < MAX_UNKNOWN_ROLES:
            self.unknown_roles[reject.detail] += 1
        first = self.first.setdefault(reject.reason, [])
        if len(first) < FIRST_REJECTS:
            first.append((row, reject))

    def add(self, other: "Written") -> None:
        """Count what another process has written."""
        self.records += other.records
        self.reasons.update(other.reasons)
        for reason, rejects in other.first.items():
            both = sorted([*self.first.get(reason, []), *rejects], key=lambda entry: entry[0])
            self.first[reason] = both[:FIRST_REJECTS]
        self.tools.update(other.tools)
        self.unknown_roles.update(other.unknown_roles)
        self.tally.add(other.tally)


class _Files(NamedTuple):
    conversations: Path
    rejects: Path


class _Starts(NamedTuple):
    """Where the stripes of a share start in its two files."""

    conversations: "array[int]"
    rejects: "array[int]"


def write_conversations(source: str, parameters: SourceParameters, conversations: Path, rejects: Path) -> Written:
    """Write the records of a dataset, and a line for each entry or part of it that is rejected."""
    files, shares = _Files(conversations, rejects), _shares(parameters)
    if len(shares) == 1:
        return _write(Share(), source, parameters, [files], parameters.part_bytes)[0]
    result, starts, most = Written(), list[_Starts](), min(len(shares), 1 + _size(parameters) // LARGE_BYTES)
    with TemporaryDirectory(dir=conversations.parent) as folder, worker_pool(most) as parallel_map:
        parts = [_Files(*(Path(folder, f"{file.name}.{share.number}") for file in files)) for share in shares]
        write = partial(_write, source=source, parameters=parameters, parts=parts, part_bytes=sys.maxsize)
        done = parallel_map(write, shares)
        for one, own in progress(done, f"prepare {source}", total=len(shares)) if shares[0].file else done:
            result.add(one)
            starts.append(own)
        limits = parameters.part_bytes, sys.maxsize
        for number, (output, part_bytes) in enumerate(zip(files, limits, strict=True)):
            stripes = partial(stripes_in_turn, [part[number] for part in parts], [own[number] for own in starts])
            join_stripes(stripes, output, part_bytes, parallel_map)
    return result


def tools_of(record: Record) -> list[str]:
    """The names of the tools that a record declares."""
    first, _, _ = record.text.partition(f"{IM_END}\n")
    return declared_tools(parse(f"{first}{IM_END}\n")) if first.startswith(f"{IM_START}system\n") else []


def _shares(parameters: SourceParameters) -> list[Share]:
    """The shares of a dataset: its files if they are many, or stripes; a single one of what is small or generated.

    With columns it is known at the end of all files whether some column is in none, so these are read in stripes; but
    stripes of files that take much memory to read are not worth their readers.
    """
    rows_are_messages = parameters.columns is not None and parameters.columns.parent is not None
    if rows_are_messages or parameters.format in ("skills", "talk", "hub", "documents"):
        return [Share()]
    files = files_of(parameters.path, parameters.patterns)
    count = min(available_workers(), 1 + _size(parameters) // LARGE_BYTES)
    if count > 1 and len(files) >= 2 * count and parameters.limit is None and parameters.columns is None:
        return [Share(number, len(files), file) for number, file in enumerate(files)]
    if any(inner_suffix(file) in _ONE_READER for file in files):
        return [Share()]
    return [Share(number, min(_MAX_PROCESSES, count)) for number in range(min(_MAX_PROCESSES, count))]


def _size(parameters: SourceParameters) -> int:
    return sum(size_of(file) for file in files_of(parameters.path, parameters.patterns))


def _write(
    share: Share, source: str, parameters: SourceParameters, parts: Sequence[_Files], part_bytes: int
) -> tuple[Written, _Starts]:
    """Write the entries of the rows of a share; also returns where its stripes start."""
    files = parts[share.number]
    if share.file:
        parameters = parameters.model_copy(update={"path": share.file, "files": "*"})
    written, starts, dataset = Written(), _Starts(array("q"), array("q")), dataset_of(parameters)
    rows = dataset.rows if share.file or share.number else progress(dataset.rows, f"prepare {source}")
    with PartsWriter(files.conversations, part_bytes) as out, files.rejects.open("wb") as rejected:
        for number, row in enumerate(rows):
            if not share.has(number):
                continue
            if number % _STRIPE_ROWS == 0 and not (share.file and number):
                starts.conversations.append(out.tell())
                starts.rejects.append(rejected.tell())
            for entry in entries_of(dataset.item(row), source, parameters, written.tally):
                if isinstance(entry, Record):
                    out.write(_line(entry))
                    written.add_record(entry)
                else:
                    rejected.write(to_json(replace(entry, place=_in_utf8(entry.place))) + b"\n")
                    written.add_reject(share.place(number), entry)
    return written, starts


def _line(record: Record) -> bytes:
    fields = {"source": record.source, "group": record.group, "text": record.text, "skill": record.skill}
    return to_json(fields | ({"train": record.train} if record.train else {})) + b"\n"


def _in_utf8(name: str) -> str:
    r"""A name in which each byte that is not UTF-8 is written as `\udcff`."""
    return name.encode("utf-8", "backslashreplace").decode()
