"""The records of a dataset: its conversations, repaired and checked, and what is left out."""

import re
from collections.abc import Iterator, Sequence

from chatmill.conversation.chatml import IM_START, Conversation, Record, check_turns, escape, is_document, render
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
from chatmill.datasets.repair import repair
from chatmill.datasets.source_parameters import SourceParameters
from chatmill.datasets.split import on_side, question_group
from chatmill.datasets.tally import Tally

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
