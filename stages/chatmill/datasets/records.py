"""The records of a dataset: its conversations, repaired and checked, and what is left out."""

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from chatmill.conversation import (
    CALCULATOR,
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
from chatmill.datasets.formats.example import Document, Example, Extent, Reject, Turn, extent_of, num_bytes
from chatmill.datasets.formats.registry import Dataset, open_dataset
from chatmill.datasets.repair import SourceParameters, Tally, redact, repair
from chatmill.datasets.split import on_side, question_group
from chatmill.personal_data import redacted
from chatmill.pipeline.outputs import SCRATCH
from chatmill.pipeline.progress import log, progress
from chatmill.workers import worker_pool

MAX_MESSAGE_BYTES = 1_000_000
MAX_RUN = 50_000  # equal characters, or whitespace; encode refuses 100,000, with what a template puts around a message
_RUN = re.compile(r"\s{16,}|(.)\1{15,}", re.DOTALL)
REDACTED = "redacted"  # in place of what may quote a message
_REASONS = {"role out of order": "role_order", "empty turn": "empty_turn", "no answer": "no_answer"}


def records(source: str, parameters: SourceParameters, tally: Tally) -> Iterator[Record | Reject]:
    """The conversations of a dataset as records, and a reject for each invalid entry and each part that is left out."""
    dataset = open_dataset(parameters)
    for row in dataset.rows:
        yield from entries_of(dataset.item(row), source, parameters, tally)


def entries_of(
    item: Example | Document | Reject, source: str, parameters: SourceParameters, tally: Tally
) -> Iterator[Record | Reject]:
    """Yield the record or the reject of an entry, then a reject for each part left out; the tally counts them."""
    for entry in _entries(item, source, parameters, tally):
        if isinstance(entry, Reject):
            tally.reject(entry)
            entry = replace(entry, detail=REDACTED) if parameters.redact else entry
        yield entry


def _entries(
    item: Example | Document | Reject, source: str, parameters: SourceParameters, tally: Tally
) -> Iterator[Record | Reject]:
    """Yield as `entries_of` does, which counts the rejects; here what is read and what is kept is counted."""
    if isinstance(item, Reject):
        tally.read(Extent(item.messages, item.bytes))
        yield item
        return
    if isinstance(item, Document):
        yield _document(item, source, parameters, tally)
        return
    extent = Extent(*map(sum, zip(extent_of(item.turns), *(part.extent for part in item.dropped), strict=True)))
    tally.read(extent)
    repaired = repair(item.turns, parameters)
    turns, redactions = redact(repaired.turns, item.names) if parameters.redact else (repaired.turns, [])
    entry = _record(item, turns, source, parameters)
    if isinstance(entry, Reject):
        yield Reject(entry.place, entry.reason, entry.detail, *extent)
        return
    parts, rules = [*item.dropped, *repaired.dropped], [*repaired.rules, *redactions, *item.notes]
    tally.keep(extent_of(turns) if parts or rules else extent, rules)
    yield entry
    for part in parts:
        yield Reject(item.place, part.reason, part.detail, *part.extent, part=True)


def _record(item: Example, turns: Sequence[Turn], source: str, parameters: SourceParameters) -> Record | Reject:
    conversation = [turn.message for turn in turns]
    try:
        if turns is not item.turns:  # else it is regular
            check_turns(conversation, opening=parameters.assistant_first == "keep")
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
    extent, rules = Extent(1, num_bytes(item.text)), list[str]()
    text = escape(redacted(item.text, (), rules) if parameters.redact else item.text)
    tally.read(extent)
    problem = _text_problem(text, []) if text.strip() else ("empty_document", "no text but white space")
    if problem:
        return Reject(item.place, *problem, *extent)
    tally.keep(extent, rules)
    return Record(source, on_side(item.group, parameters.side) if parameters.side else item.group, text)


def _text_problem(text: str, conversation: Conversation) -> tuple[str, str] | None:
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
    return max((match[0] for match in _RUN.finditer(text)), key=len, default="")


# Writes the conversations of a dataset and its rejects, converted by several processes where the dataset is large.

LARGE_BYTES = 32_000_000  # of files for each further process; for fewer, its start takes longer than it saves
BATCH_ROWS = 256  # that a process converts at once
FIRST_REJECTS = 5  # of each reason, that are kept for messages
MAX_UNKNOWN_ROLES = 1000  # combinations that are counted
GENERATED = ("skills", "talk", "hub")  # have no files of rows


@dataclass
class Written:
    records: int = 0
    reasons: Counter[str] = field(default_factory=Counter)  # of complete entries
    first: dict[str, list[Reject]] = field(default_factory=dict)  # rejects by reason
    tools: Counter[str] = field(default_factory=Counter)  # conversations that declare them
    unknown_roles: Counter[str] = field(default_factory=Counter)  # by what is said of them
    tally: Tally = field(default_factory=Tally)

    def add_reject(self, reject: Reject) -> None:
        if not reject.part:
            self.reasons[reject.reason] += 1
        if reject.reason == "unknown_role" and len(self.unknown_roles) < MAX_UNKNOWN_ROLES:
            self.unknown_roles[reject.detail] += 1
        first = self.first.setdefault(reject.reason, [])
        if len(first) < FIRST_REJECTS:
            first.append(reject)


def write_conversations(source: str, parameters: SourceParameters, conversations: Path, rejects: Path) -> Written:
    """Write the records and the rejects of a source to two files, in the order of the dataset; return their counts."""
    result, workers = Written(), 1
    if parameters.format not in GENERATED:
        size = sum(file.stat().st_size for file in files_of(parameters.path, parameters.patterns))
        workers += size // LARGE_BYTES
    dataset = open_dataset(parameters)
    rows = iter(progress(dataset.rows, f"prepare {source}"))
    batches = iter(lambda: list(islice(rows, BATCH_ROWS)), [])
    convert = partial(_convert, source=source, parameters=parameters)
    with worker_pool(workers) as ordered_map, conversations.open("wb") as out, rejects.open("wb") as rejected:
        for tally, entries in ordered_map(convert, batches):
            result.tally.add(tally)
            for reject_or_tools, line in entries:
                if isinstance(reject_or_tools, Reject):
                    rejected.write(line)
                    result.add_reject(reject_or_tools)
                else:
                    out.write(line)
                    result.records += 1
                    result.tools.update(reject_or_tools)
    return result


def _convert(
    rows: list[Any], *, source: str, parameters: SourceParameters
) -> tuple[Tally, list[tuple[Reject | list[str], bytes]]]:
    """The counts of some rows, and for each line to write its Reject, or the names of the tools its record declares."""
    tally, result = Tally(), list[tuple[Reject | list[str], bytes]]()
    item = _dataset(parameters.model_dump_json()).item
    for row in rows:
        for entry in entries_of(item(row), source, parameters, tally):
            if isinstance(entry, Record):
                result.append((_tools_of(entry), entry.to_json().encode()))
            else:
                result.append((entry, to_json(replace(entry, place=_in_utf8(entry.place))) + b"\n"))
    return tally, result


@lru_cache(maxsize=1)  # each process converts by a dataset of its own
def _dataset(parameters: str) -> Dataset:
    return open_dataset(SourceParameters.model_validate_json(parameters))


def _tools_of(record: Record) -> list[str]:
    first, _, _ = record.text.partition(f"{IM_END}\n")
    return declared_tools(parse(f"{first}{IM_END}\n")) if first.startswith(f"{IM_START}system\n") else []


def _in_utf8(name: str) -> str:
    r"""A name in which each byte that is not UTF-8 is written as `\udcff`."""
    return name.encode("utf-8", "backslashreplace").decode()


WANTED = {"language", "one_sided"}  # reasons that are no faults


def log_counts(source: str, result: Written, rejects: Path) -> None:
    """Log what was rejected, left out and repaired, and tools that models do not learn to call."""
    counts, rejected = result.tally.content(), result.reasons.total()
    if rejected:
        reasons = ", ".join(f"{name} {number:,}" for name, number in sorted(result.reasons.items()))
        total = result.records + rejected
        log("prepare", f"{source}: rejected {rejected:,} of {total:,} entries: {reasons} (see {rejects.name})")
    for what, by_reason in (("left out", counts["messages"]["rejected"]), ("repaired", counts["repaired"])):
        if numbers := ", ".join(f"{name} {number:,}" for name, number in by_reason.items() if number):
            unit = f"of {counts['messages']['read']:,} messages" if what == "left out" else "conversations"
            log("prepare", f"{source}: {what} {unit}: {numbers}")
    others = [f"{name} ({number} conversations)" for name, number in result.tools.items() if name != CALCULATOR]
    if others:
        log("prepare", f"{source}: models learn to call {CALCULATOR} alone, but these declare {', '.join(others)}")


def check_rejects(source: str, result: Written, rejects: Path, max_reject_rate: float) -> None:
    """Raise ValueError if too many entries are rejected; rows in other languages are not counted."""
    saved = Path(SCRATCH, "rejects", f"{source}.jsonl")
    saved.unlink(missing_ok=True)
    faults = Counter({reason: number for reason, number in result.reasons.items() if reason not in WANTED})
    count, total = faults.total(), result.records + faults.total()
    if count <= max_reject_rate * total:
        return
    saved.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(rejects, saved)  # outputs are removed on an error
    reason, times = faults.most_common(1)[0]
    first = result.first[reason][0]
    for name, number in faults.most_common():
        for reject in result.first[name] if name != "unknown_role" else ():
            if reject is not first:
                log("prepare", f"{name} ({number:,}): {reject.place}: {reject.detail}")
    for detail, number in result.unknown_roles.most_common(10):
        log("prepare", f"{detail} ({number:,} conversations)")
    remedy = f"fix the file, or raise prepare.{source}.max_reject_rate in params.yaml"
    if not result.records:
        remedy = f"correct prepare.{source} in params.yaml, or the file"
    raise ValueError(
        f"{first.place}: {first.detail}: {count} of {total} entries are rejected (see {saved}), {times} of them as "
        f"{reason}: {remedy}"
    )
