"""The files that mix reads and writes: those that prepare wrote, and one for each split."""

import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from chatmill.datasets.split import STATES
from chatmill.pipeline.manifest import check_file, read_json
from chatmill.pipeline.progress import progress


def prepared_files(folder: Path, sources: list[str]) -> list[Path]:
    """The prepared file of each source. Raises ValueError if one is missing or changed, or if there are others."""
    expected = {f"{source}{end}" for source in sources for end in (".jsonl", ".rejects.jsonl")}
    for file in sorted(folder.glob("*.jsonl")):
        if file.name not in expected:
            source = file.name.partition(".")[0]
            raise ValueError(f"{file}: params.yaml has no section prepare.{source}: delete {folder}/{source}.*")
    files = [folder / f"{source}.jsonl" for source in sources]
    for file in files:
        if not file.exists():
            raise ValueError(f"{file} is missing: run dvc repro prepare@{file.stem}")
        for written in (file, file.with_suffix(".rejects.jsonl")):
            check_file(written, file.with_suffix(".manifest.json"))
    return files


def count_rejects(file: Path) -> dict[str, int]:
    """The number of rejected entries of a prepared file, by reason; parts of entries are not counted."""
    with file.with_suffix(".rejects.jsonl").open(encoding="utf-8") as lines:
        rejects = map(json.loads, lines)
        return dict(sorted(Counter(reject["reason"] for reject in rejects if not reject.get("part")).items()))


def read_counts(file: Path) -> dict[str, Any]:
    """What prepare counted of the source of a prepared file."""
    return dict(read_json(file.with_suffix(".manifest.json"))["counts"])


def count_states(folder: Path) -> tuple[list[int], list[int]]:
    """The number of records in each state, and their bytes of text."""
    counts, sizes = np.zeros(STATES, np.int64), np.zeros(STATES, np.int64)
    with (folder / "states").open("rb") as states, (folder / "sizes").open("rb") as bytes_of_text:
        while block := states.read(1 << 20):
            state = np.frombuffer(block, np.uint8)
            counts += np.bincount(state, minlength=STATES)
            size = np.frombuffer(bytes_of_text.read(4 << 20), np.uint32)
            sizes += np.bincount(state, size, minlength=STATES).astype(np.int64)
    return counts.tolist(), sizes.tolist()


def write_splits(files: list[Path], folder: Path, outputs: list[Path]) -> None:
    """Copy the lines of prepared files to the outputs, by the states in a folder, which are numbers of outputs."""
    states = np.memmap(folder / "states", np.uint8, "r")
    first = 0
    with ExitStack() as stack:
        outs = [stack.enter_context(output.open("wb")) for output in outputs]
        for file in progress(files, "write", total=len(files)):
            with file.open("rb") as lines:
                for number, line in enumerate(lines, start=first):
                    if (state := states[number]) < len(outs):
                        outs[state].write(line)
                    first = number + 1
