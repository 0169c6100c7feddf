"""Reads the files of which the report is made."""

import csv
import json
import math
from pathlib import Path

from chatmill.conversation import Record
from chatmill.data_card import Card, Count, make_card, sample_records
from chatmill.report import sections
from chatmill.report.metrics import Metrics

SAMPLED = 2000  # conversations of the training set whose text is looked at


def read_text(file: Path) -> str:
    """The text of a file. Raises ValueError where it is not UTF-8."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 at byte {error.start}") from error


def read_metrics(file: Path) -> Metrics:
    """The metrics in a file. Raises ValueError where it is not an object of JSON."""
    try:
        content = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file}: expected metrics as an object of JSON, got a {type(content).__name__}")
    return content


def read_samples(file: Path) -> list[Metrics]:
    """The sample answers in a file, one per line. Raises ValueError with file and line."""
    result = []
    for number, line in enumerate(read_text(file).split("\n")[:-1], start=1):
        try:
            sample = json.loads(line)
            chunks = {"chunk_bytes": [int(size) for size in sample["chunk_bytes"]]} if "chunk_bytes" in sample else {}
            of_data = {key: sample[key] for key in ("true", "messages_before") if key in sample}
            result.append({key: sample[key] for key in ("prompt", "answer", "stopped")} | of_data | chunks)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file}:{number}: expected a sample with prompt, answer and stopped: {error}") from error
    return result


def read_curve(file: Path) -> sections.Curve:
    """The columns of a tab-separated table, by step; cells without a finite number are left out."""
    curve: sections.Curve = {}
    for number, row in enumerate(csv.DictReader(read_text(file).splitlines(), delimiter="\t"), start=2):
        try:
            values = {name: float(cell) for name, cell in row.items() if cell}
            step = values.pop("step")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file}:{number}: expected numbers and a step: {error}") from error
        for name, value in values.items():
            if math.isfinite(value):
                curve.setdefault(name, []).append((step, value))
    return curve


def cards_of(train: Path, count_tokens: Count, context: int | None) -> dict[str, Card]:
    """The data card of each source in a sample of the training set."""
    by_source: dict[str, list[Record]] = {}
    for record in sample_records(train, SAMPLED):
        by_source.setdefault(record.source, []).append(record)
    return {
        source: make_card(records, count_tokens=count_tokens, context=context)
        for source, records in sorted(by_source.items())
    }
