"""The records of a dataset: its conversations, repaired and checked, and what is left out."""

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from chatmill.conversation import CALCULATOR, Conversation, Record, check_turns, declared_tools, escape, render
from chatmill.datasets.formats.containers import files_of
from chatmill.datasets.formats.example import (
    Document,
    Example,
    Extent,
    Reject,
    Turn,
    UnusableRowError,
    extent_of,
    num_bytes,
)
from chatmill.datasets.formats.registry import Dataset, Item, open_dataset
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


def entries_of(item: Item, source: str, parameters: SourceParameters, tally: Tally) -> Iterator[Record | Reject]:
    """Yield the record or the reject of an entry, then a reject for each part left out; the tally counts them."""
    extent = _extent(item)
    tally.count("read", extent)
    try:
        if isinstance(item, Example):
            entries = _example(item, extent, source, parameters, tally)
        else:
            entries = [item if isinstance(item, Reject) else _document(item, extent, source, parameters, tally)]
    except UnusableRowError as error:
        entries = [Reject(item.place, error.reason, str(error), *extent)]
    for entry in entries:
        if isinstance(entry, Reject):
            entry = replace(entry, detail=REDACTED) if parameters.redact else entry
            tally.reject(entry)
        yield entry


def _extent(item: Item) -> Extent:
    if isinstance(item, Example):
        return Extent(*map(sum, zip(extent_of(item.turns), *(part.extent for part in item.dropped), strict=True)))
    return Extent(item.messages, item.bytes) if isinstance(item, Reject) else Extent(1, num_bytes(item.text))


def _document(item: Document, extent: Extent, source: str, parameters: SourceParameters, tally: Tally) -> Record:
    rules = list[str]()
    text = escape(redacted(item.text, (), rules) if parameters.redact else item.text)
    if not text.strip():
        raise UnusableRowError("empty_document", "no text but white space")
    _check_text(text, [])
    tally.keep(extent, rules)
    return Record(source, on_side(item.group, parameters.side) if parameters.side else item.group, text)


def _example(
    item: Example, extent: Extent, source: str, parameters: SourceParameters, tally: Tally
) -> list[Record | Reject]:
    repaired = repair(item.turns, parameters)
    turns, redactions = redact(repaired.turns, item.names) if parameters.redact else (repaired.turns, [])
    conversation = [turn.message for turn in turns]
    try:
        if turns is not item.turns:  # else it is regular
            check_turns(conversation, opening=parameters.assistant_first == "keep")
    except ValueError as error:
        reason = next(reason for start, reason in _REASONS.items() if str(error).startswith(start))
        raise UnusableRowError(reason, str(error)) from error
    text, train = render(conversation), _trained(turns, parameters.mask_history)
    _check_text(text, conversation)
    if train and not any(train[i] is not False for i, turn in enumerate(turns) if turn.message.role == "assistant"):
        raise UnusableRowError("not_trained", "no message of the assistant is trained")
    group, side = item.group or question_group(text), parameters.side
    record = Record(source, on_side(group, side) if side else group, text, item.skill, train)
    parts, rules = [*item.dropped, *repaired.dropped], [*repaired.rules, *redactions, *item.notes]
    tally.keep(extent_of(turns) if parts or rules else extent, rules, declared_tools(conversation))
    return [record, *(Reject(item.place, part.reason, part.detail, *part.extent, part=True) for part in parts)]


def _check_text(text: str, conversation: Conversation) -> None:
    """Raise UnusableRowError for the text of a record that is no UTF-8, or that the stages after it do not take."""
    try:
        is_long = len(text.encode()) > MAX_MESSAGE_BYTES
    except UnicodeEncodeError as error:
        before = text[max(0, error.start - 20) : error.start]
        is_byte = "\udc80" <= text[error.start] <= "\udcff"
        what = "a byte that is not UTF-8" if is_byte else "half a character, where both are needed,"
        remedy = ": convert the file, as by iconv -f cp1252 -t utf-8" if is_byte else ""
        raise UnusableRowError("not_utf8", f"{what} ({text[error.start]!a}) after {before!r}{remedy}") from error
    sizes = (sum(num_bytes(part.text) for part in message.parts) for message in conversation)
    if is_long and max(sizes, default=0) > MAX_MESSAGE_BYTES:
        raise UnusableRowError("too_long", f"message longer than {MAX_MESSAGE_BYTES:,} bytes")
    runs = _RUN.finditer(text) if len(text) > MAX_RUN else ()
    run = max((match[0] for match in runs), key=len, default="")
    if len(run) > MAX_RUN:
        what = "whitespace characters" if run.isspace() else f"times {run[0]!r}"
        raise UnusableRowError("long_run", f"a run of {len(run):,} {what}: expected at most {MAX_RUN:,}")


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


# Writes the conversations of a dataset and its rejects, converted by several processes where the dataset is large.

LARGE_BYTES = 32_000_000  # of files for each further process; for fewer, its start takes longer than it saves
BATCH_ROWS = 256  # that a process converts at once
GENERATED = ("skills", "talk", "hub")  # have no files of rows


def write_conversations(source: str, parameters: SourceParameters, conversations: Path, rejects: Path) -> Tally:
    """Write the records and the rejects of a source to two files, in the order of the dataset; return their counts."""
    result, workers = Tally(), 1
    if parameters.format not in GENERATED:
        size = sum(file.stat().st_size for file in files_of(parameters.path, parameters.patterns))
        workers += size // LARGE_BYTES
    rows = iter(progress(open_dataset(parameters).rows, f"prepare {source}"))
    batches = iter(lambda: list(islice(rows, BATCH_ROWS)), [])
    convert = partial(_convert, source=source, parameters=parameters)
    with worker_pool(workers) as ordered_map, conversations.open("wb") as out, rejects.open("wb") as rejected:
        for tally, kept_lines, rejected_lines in ordered_map(convert, batches):
            result.add(tally)
            out.write(kept_lines)
            rejected.write(rejected_lines)
    return result


def _convert(rows: list[Any], *, source: str, parameters: SourceParameters) -> tuple[Tally, bytes, bytes]:
    """The counts of some rows, the lines of their records, and those of their rejects."""
    tally, kept, rejected = Tally(), list[bytes](), list[bytes]()
    item = _dataset(parameters.model_dump_json()).item
    for row in rows:
        for entry in entries_of(item(row), source, parameters, tally):
            if isinstance(entry, Record):
                kept.append(entry.to_json().encode())
            else:
                place = entry.place.encode("utf-8", "backslashreplace").decode()  # of a name that is not UTF-8
                rejected.append(to_json(replace(entry, place=place)) + b"\n")
    return tally, b"".join(kept), b"".join(rejected)


@lru_cache(maxsize=1)  # each process converts by a dataset of its own
def _dataset(parameters: str) -> Dataset:
    return open_dataset(SourceParameters.model_validate_json(parameters))


WANTED = {"language", "one_sided"}  # reasons that are no faults


def log_counts(source: str, result: Tally, rejects: Path) -> None:
    """Log what was rejected, left out and repaired, and tools that models do not learn to call."""
    counts, rejected = result.content(), result.reasons.total()
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


def check_rejects(source: str, result: Tally, rejects: Path, max_reject_rate: float) -> None:
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
    first = result.first[reason]
    for name, number in faults.most_common()[1:]:
        log("prepare", f"{name} ({number:,}): {result.first[name].place}: {result.first[name].detail}")
    remedy = f"fix the file, or raise prepare.{source}.max_reject_rate in params.yaml"
    if not result.records:
        remedy = f"correct prepare.{source} in params.yaml, or the file"
    raise ValueError(
        f"{first.place}: {first.detail}: {count} of {total} entries are rejected (see {saved}), {times} of them as "
        f"{reason}: {remedy}"
    )
