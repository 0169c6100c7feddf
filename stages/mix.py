"""Remove duplicates across the sources and split by group."""

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field

from chatmill.datasets.mixing import (
    check_splits,
    count_rejects,
    count_states,
    find_duplicates,
    prepared_files,
    read_counts,
    write_splits,
)
from chatmill.datasets.split import DUPLICATE, LEAKED, NEAR_DUPLICATE, NEAR_LEAKED, SPLITS, assign_split
from chatmill.pipeline.manifest import write_file_manifest
from chatmill.pipeline.signatures import Output, Section
from chatmill.pipeline.stage import stage
from chatmill.workers import shards_of, worker_pool

PositiveFraction = Annotated[float, Field(gt=0, lt=1)]


@stage
def main(
    prepared: Path,
    train: Output,
    validation: Output,
    test: Output,
    manifest: Output,
    metrics: Output,
    *,
    prepare: Section,
    validation_share: PositiveFraction,
    test_share: PositiveFraction,
    near_duplicates: bool,
) -> None:
    """Write the conversations of each split, and the number of dropped ones by reason.

    The sources are read in the order of their names. `leaked` counts conversations that were dropped because a copy, or
    the same question, is on another side, and `duplicates` all other copies. Raises ValueError if a split is empty.
    """
    if validation_share + test_share >= 1:
        total = validation_share + test_share
        raise ValueError(f"params.yaml: mix.validation_share + mix.test_share: expected less than 1, got {total:g}")
    files = prepared_files(prepared, sorted(prepare))
    split_of = partial(assign_split, validation_share=validation_share, test_share=test_share)
    scopes = {name: section.get("near_duplicates") for name, section in prepare.items()}

    # The split of each record, or why it is dropped, in files of a scratch folder.
    shards = [shard for file in files for shard in shards_of(file)]
    with tempfile.TemporaryDirectory(dir=train.parent) as scratch, worker_pool(len(shards) // 4) as ordered_map:
        folder = Path(scratch)
        find_duplicates(shards, folder, split_of, scopes if near_duplicates else None, ordered_map)
        counts, sizes = count_states(folder)
        check_splits(counts, (test_share, validation_share, 1 - validation_share - test_share))
        write_splits(files, folder, [test, validation, train])  # in the order of SPLITS

    write_file_manifest(manifest, [train, validation, test], kind="conversations")
    content = {
        "conversations": dict(zip(SPLITS, counts, strict=False)),
        "bytes": dict(zip(SPLITS, sizes, strict=False)),
        "rejected": {file.stem: reasons for file in files if (reasons := count_rejects(file))},
        "read": {file.stem: read_counts(file) for file in files},
        "duplicates": counts[DUPLICATE],
        "leaked": counts[LEAKED],
        "near_duplicates": {"train": counts[NEAR_DUPLICATE], "leaked": counts[NEAR_LEAKED]},
    }
    metrics.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
