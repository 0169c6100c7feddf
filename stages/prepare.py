"""Read one dataset in its own format and write its conversations."""

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic_core import to_json

from chatmill.conversation.chatml import (
    CALCULATOR,
    IM_END,
    IM_START,
    Conversation,
    Record,
    check_turns,
    declared_tools,
    parse,
    render,
)
from chatmill.datasets.formats.example import Example, Reject
from chatmill.datasets.formats.registry import read_dataset
from chatmill.datasets.split import SplitName, on_side, question_group
from chatmill.pipeline.manifest import write_file_manifest
from chatmill.pipeline.outputs import SCRATCH
from chatmill.pipeline.params_file import Fraction, NonNegativeInt, PositiveInt
from chatmill.pipeline.progress import log, progress
from chatmill.pipeline.signatures import Output
from chatmill.pipeline.stage import stage

MAX_MESSAGE_BYTES = 1_000_000
MAX_RUN = 50_000  # equal characters, or whitespace; encode refuses 100,000, with what a template puts around a message
_RUN = re.compile(r"\s{16,}|(.)\1{15,}", re.DOTALL)
_REASONS = {"role out of order": "role_order", "empty turn": "empty_turn", "no answer": "no_answer"}


def records(
    raw: Path, source: str, *, format: str, limit: int | None, seed: int, side: SplitName | None = None
) -> Iterator[Record | Reject]:
    """The conversations of a dataset as records, and a reject for each invalid entry."""
    for item in read_dataset(raw, format, limit=limit, seed=seed):
        yield item if isinstance(item, Reject) else _record(item, source, side)


def _record(item: Example, source: str, side: SplitName | None) -> Record | Reject:
    conversation = _up_to_last_answer(item.conversation)
    try:
        check_turns(conversation)
    except ValueError as error:
        reason = next(reason for start, reason in _REASONS.items() if str(error).startswith(start))
        return Reject(item.place, reason, str(error))
    text = render(conversation)
    try:
        too_long = len(text.encode()) > MAX_MESSAGE_BYTES and _longest(conversation) > MAX_MESSAGE_BYTES
    except UnicodeEncodeError as error:
        return Reject(
            item.place, "not_utf8", f"half a surrogate pair or an invalid byte: {error.object[error.start]!a}"
        )
    if too_long:
        return Reject(item.place, "too_long", f"message longer than {MAX_MESSAGE_BYTES:,} bytes")
    if len(text) > MAX_RUN and len(run := _longest_run(text)) > MAX_RUN:
        what = "whitespace characters" if run.isspace() else f"times {run[0]!r}"
        return Reject(item.place, "long_run", f"a run of {len(run):,} {what}: expected at most {MAX_RUN:,}")
    group = item.group or question_group(text)
    return Record(source, on_side(group, side) if side else group, text, item.skill)


def tools_of(record: Record) -> list[str]:
    """The names of the tools that a record declares."""
    first, _, _ = record.text.partition(f"{IM_END}\n")
    return declared_tools(parse(f"{first}{IM_END}\n")) if first.startswith(f"{IM_START}system\n") else []


def _up_to_last_answer(conversation: Conversation) -> Conversation:
    """The conversation up to its last answer, since messages after it are not trained on."""
    end = len(conversation)
    while end and conversation[end - 1].role != "assistant":
        end -= 1
    return conversation[:end] or conversation


def _longest(conversation: Conversation) -> int:
    return max(sum(len(part.text.encode()) for part in message.parts) for message in conversation)


def _longest_run(text: str) -> str:
    """The longest run of equal characters or of whitespace; empty if none has 16."""
    return max((match[0] for match in _RUN.finditer(text)), key=len, default="")


@stage(foreach="conversations")
def main(
    path: Path,
    conversations: Output,
    rejects: Output,
    manifest: Output,
    *,
    format: str,
    limit: PositiveInt | None = None,
    seed: NonNegativeInt = 0,
    max_reject_rate: Fraction = 0.0,
    side: SplitName | None = None,
    near_duplicates: Literal["across", "within", "off"] | None = None,  # read by mix
) -> None:
    """Write the records of a dataset, and one line for each entry that is rejected.

    With `side` the complete source is in that split. Raises ValueError if the share of rejects is above
    `max_reject_rate`, or if no conversation remains.
    """
    source = conversations.stem
    written, reasons, first, tools = 0, Counter[str](), dict[str, Reject](), Counter[str]()
    with conversations.open("wb") as out, rejects.open("wb") as rejected:
        entries = records(path, source, format=format, limit=limit, seed=seed, side=side)
        for entry in progress(entries, f"prepare {source}"):
            if isinstance(entry, Record):
                out.write(to_json(entry, exclude_none=True) + b"\n")
                written += 1
                tools.update(tools_of(entry))
            else:
                reasons[entry.reason] += 1
                first.setdefault(entry.reason, entry)
                rejected.write(to_json(entry) + b"\n")
    if others := [f"{name} ({number} conversations)" for name, number in tools.items() if name != CALCULATOR]:
        log("prepare", f"{source}: models learn to call {CALCULATOR} alone, but these declare {', '.join(others)}")
    saved = Path(SCRATCH, "rejects", f"{source}.jsonl")
    saved.unlink(missing_ok=True)
    count = reasons.total()
    if count > max_reject_rate * (written + count):
        saved.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(rejects, saved)  # outputs are removed on an error
        reason, times = reasons.most_common(1)[0]
        raise ValueError(
            f"{first[reason].place}: {first[reason].detail}: {count} of {written + count} entries are rejected "
            f"(see {saved}), {times} of them as {reason}: fix the file, or raise prepare.{source}.max_reject_rate in "
            "params.yaml"
        )
    if not written:
        raise ValueError(f"{path}: no conversations: add some, or remove prepare.{source} from params.yaml")
    write_file_manifest(manifest, [conversations, rejects], kind="conversations")
