"""Read one dataset in its own format and write its conversations."""

import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pydantic_core import to_json

from chatmill.conversation.chatml import CALCULATOR, IM_END, IM_START, Record, declared_tools, parse
from chatmill.datasets.formats.example import Reject
from chatmill.datasets.records import records
from chatmill.datasets.source_parameters import SourceParameters
from chatmill.datasets.tally import Tally
from chatmill.pipeline.manifest import write_file_manifest
from chatmill.pipeline.outputs import SCRATCH
from chatmill.pipeline.progress import log, progress
from chatmill.pipeline.signatures import Output
from chatmill.pipeline.stage import stage

MAX_UNKNOWN_ROLES = 1000  # combinations that are counted
FIRST_REJECTS = 5  # of each reason, that are logged
WANTED = {"language"}  # reasons that are no faults


def tools_of(record: Record) -> list[str]:
    """The names of the tools that a record declares."""
    first, _, _ = record.text.partition(f"{IM_END}\n")
    return declared_tools(parse(f"{first}{IM_END}\n")) if first.startswith(f"{IM_START}system\n") else []


class _Result(NamedTuple):
    """The number of records that were written, and of rejected entries by reason, with the first of each."""

    written: int
    reasons: Counter[str]  # of complete entries
    first: dict[str, list[Reject]]  # of entries and parts
    tools: Counter[str]
    unknown_roles: Counter[str]  # by what is said of them


def _in_utf8(name: str) -> str:
    r"""A name in which each byte that is not UTF-8 is written as `\udcff`."""
    return name.encode("utf-8", "backslashreplace").decode()


def _write(entries: Iterable[Record | Reject], conversations: Path, rejects: Path) -> _Result:
    written, reasons, tools, unknown = 0, Counter[str](), Counter[str](), Counter[str]()
    first = defaultdict[str, list[Reject]](list)
    with conversations.open("wb") as out, rejects.open("wb") as rejected:
        for entry in entries:
            if isinstance(entry, Record):
                fields = {"source": entry.source, "group": entry.group, "text": entry.text, "skill": entry.skill}
                out.write(to_json(fields | ({"train": entry.train} if entry.train else {})) + b"\n")
                written += 1
                tools.update(tools_of(entry))
            else:
                reasons[entry.reason] += not entry.part
                if entry.reason == "unknown_role" and len(unknown) < MAX_UNKNOWN_ROLES:
                    unknown[entry.detail] += 1
                if len(first[entry.reason]) < FIRST_REJECTS:
                    first[entry.reason].append(entry)
                rejected.write(to_json(replace(entry, place=_in_utf8(entry.place))) + b"\n")
    return _Result(written, +reasons, first, tools, unknown)


def _log_counts(source: str, result: _Result, tally: Tally, rejects: Path) -> None:
    """Log what was rejected, left out and repaired, and tools that models do not learn to call."""
    counts, rejected = tally.content(), result.reasons.total()
    if rejected:
        reasons = ", ".join(f"{name} {number:,}" for name, number in sorted(result.reasons.items()))
        total = result.written + rejected
        log("prepare", f"{source}: rejected {rejected:,} of {total:,} entries: {reasons} (see {rejects.name})")
    for what, by_reason in (("left out", counts["messages"]["rejected"]), ("repaired", counts["repaired"])):
        if numbers := ", ".join(f"{name} {number:,}" for name, number in by_reason.items() if number):
            unit = f"of {counts['messages']['read']:,} messages" if what == "left out" else "conversations"
            log("prepare", f"{source}: {what} {unit}: {numbers}")
    others = [f"{name} ({number} conversations)" for name, number in result.tools.items() if name != CALCULATOR]
    if others:
        log("prepare", f"{source}: models learn to call {CALCULATOR} alone, but these declare {', '.join(others)}")


def _check_rejects(source: str, result: _Result, rejects: Path, max_reject_rate: float) -> None:
    """Raise ValueError if too many entries are rejected; rows in other languages are not counted."""
    saved = Path(SCRATCH, "rejects", f"{source}.jsonl")
    saved.unlink(missing_ok=True)
    faults = Counter({reason: number for reason, number in result.reasons.items() if reason not in WANTED})
    count, total = faults.total(), result.written + faults.total()
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
    if not result.written:
        remedy = f"correct prepare.{source} in params.yaml, or the file"
    raise ValueError(
        f"{first.place}: {first.detail}: {count} of {total} entries are rejected (see {saved}), {times} of them as "
        f"{reason}: {remedy}"
    )


@stage(foreach="conversations")
def main(conversations: Output, rejects: Output, manifest: Output, *, parameters: SourceParameters) -> None:
    """Write the records of a dataset, and one line for each entry or part of it that is rejected.

    With `side` the complete source is in that split. Raises ValueError if the share of rejected entries is above
    `max_reject_rate`, or if no conversation remains.
    """
    source, tally = conversations.stem, Tally()
    entries = progress(records(source, parameters, tally), f"prepare {source}")
    result = _write(entries, conversations, rejects)
    _check_rejects(source, result, rejects, parameters.max_reject_rate)
    if not result.written and result.reasons:
        left_out = ", ".join(f"{reason} {number:,}" for reason, number in result.reasons.items())
        raise ValueError(
            f"{parameters.path}: no conversations remain of {result.reasons.total():,} ({left_out}): change the "
            f"file, or prepare.{source} in params.yaml"
        )
    if not result.written:
        raise ValueError(f"{parameters.path}: no conversations: add some, or remove prepare.{source} from params.yaml")
    _log_counts(source, result, tally, rejects)
    write_file_manifest(manifest, [conversations, rejects], kind="conversations", counts=tally.content())
