"""Tables for the plots of DVC: a header and rows, separated by tabs."""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any

from chatmill.report.metrics import Metrics, get_nested
from chatmill.report.sections import Curve
from chatmill.report.speed import measured_latencies

ENGINES = ("onnx", "pytorch")  # dvc.yaml names their columns
TIMES = {"first_token_ms": "ttft_ms", "token_ms": "token_ms"}


def table_of_validation(curve: Curve) -> str:
    """Bits per byte on validation at the steps that measure it; in train.tsv DVC draws the other, empty cells as 0."""
    return tab_separated(("step", "bits_per_byte"), curve.get("validation_bits_per_byte", []))


def table_of_sources(evaluation: Metrics) -> str:
    """Bits per byte by source."""
    by_source = get_nested(evaluation, "bits_per_byte", "by_source", default={})
    return tab_separated(("source", "bits_per_byte"), by_source.items())


def table_of_latency(benchmark: Metrics) -> str:
    """Median milliseconds to the first token and for each next one, with a cache, by tokens of the prompt.

    A time that was not measured is `nan`, which DVC leaves out.
    """
    times = {
        (engine, prompt, name): get_nested(values, key, "p50")
        for engine, mode, by_prompt in measured_latencies(benchmark)
        for prompt, values in by_prompt
        for name, key in TIMES.items()
        if mode == "cache"
    }
    columns = [(engine, name) for engine in ENGINES for name in TIMES]
    rows = (
        (prompt, *(times.get((engine, prompt, name), "nan") for engine, name in columns))
        for prompt in sorted({prompt for _, prompt, _ in times})
    )
    return tab_separated(("prompt_tokens", *(f"{engine}_{name}" for engine, name in columns)), rows)


def tab_separated(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table as text."""
    lines = []
    for row in (header, *rows):
        line = StringIO(newline="")
        csv.writer(line, delimiter="\t", lineterminator="\r\n").writerow(row)  # quotes cells with either of the two
        lines.append(line.getvalue().removesuffix("\r\n") + "\n")
    return "".join(lines)
