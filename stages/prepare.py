"""Read one dataset in its own format and write its conversations."""

import shutil
from collections import Counter
from pathlib import Path

from chatmill.conversation import CALCULATOR
from chatmill.datasets.records import Written, write_conversations
from chatmill.datasets.source_parameters import SourceParameters
from chatmill.pipeline.manifest import write_file_manifest
from chatmill.pipeline.outputs import SCRATCH
from chatmill.pipeline.progress import log
from chatmill.pipeline.signatures import Output
from chatmill.pipeline.stage import stage

WANTED = {"language"}  # reasons that are no faults


def _log_counts(source: str, result: Written, rejects: Path) -> None:
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


def _check_rejects(source: str, result: Written, rejects: Path, max_reject_rate: float) -> None:
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


@stage(foreach="conversations")
def main(conversations: Output, rejects: Output, manifest: Output, *, parameters: SourceParameters) -> None:
    """Write the records of a dataset, and one line for each entry or part of it that is rejected.

    With `side` the complete source is in that split. Raises ValueError if the share of rejected entries is above
    `max_reject_rate`, or if no conversation remains.
    """
    source = conversations.stem
    result = write_conversations(source, parameters, conversations, rejects)
    _check_rejects(source, result, rejects, parameters.max_reject_rate)
    if not result.records and result.reasons:
        left_out = ", ".join(f"{reason} {number:,}" for reason, number in result.reasons.items())
        raise ValueError(
            f"{parameters.path}: no conversations remain of {result.reasons.total():,} ({left_out}): change the "
            f"file, or prepare.{source} in params.yaml"
        )
    if not result.records:
        raise ValueError(f"{parameters.path}: no conversations: add some, or remove prepare.{source} from params.yaml")
    _log_counts(source, result, rejects)
    write_file_manifest(manifest, [conversations, rejects], kind="conversations", counts=result.tally.content())
