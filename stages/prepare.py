"""Read one dataset in its own format and write its conversations."""

from chatmill.datasets.records import check_rejects, log_counts, write_conversations
from chatmill.datasets.repair import SourceParameters
from chatmill.pipeline.manifest import write_file_manifest
from chatmill.pipeline.signatures import EntryOutput, Output
from chatmill.pipeline.stage import stage


@stage
def main(conversations: EntryOutput, rejects: Output, manifest: Output, *, parameters: SourceParameters) -> None:
    """Write the records of a dataset, and one line for each entry or part of it that is rejected.

    With `side` the complete source is in that split. Raises ValueError if the share of rejected entries is above
    `max_reject_rate`, or if no conversation remains.
    """
    source = conversations.stem
    result = write_conversations(source, parameters, conversations, rejects)
    check_rejects(source, result, rejects, parameters.max_reject_rate)
    if not result.records and result.reasons:
        left_out = ", ".join(f"{reason} {number:,}" for reason, number in result.reasons.items())
        raise ValueError(
            f"{parameters.path}: no conversations remain of {result.reasons.total():,} ({left_out}): change the "
            f"file, or prepare.{source} in params.yaml"
        )
    if not result.records:
        raise ValueError(f"{parameters.path}: no conversations: add some, or remove prepare.{source} from params.yaml")
    log_counts(source, result, rejects)
    write_file_manifest(manifest, [conversations, rejects], kind="conversations", counts=result.content())
