"""Tables that DVC draws plots from: a header, and values between tabs."""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any

from chatmill.report.metrics import Metrics, at
from chatmill.report.speed import latencies


def table_of_sources(evaluation: Metrics) -> str:
    """Bits per byte of each source."""
    by_source = at(evaluation, "bits_per_byte", "by_source", default={})
    return tab_separated(("source", "bits_per_byte"), by_source.items())


def table_of_latency(benchmark: Metrics) -> str:
    """The median milliseconds to the first token and for each next one, with a cache, by tokens of the prompt."""
    rows: dict[int, dict[str, float]] = {}
    for engine, mode, by_prompt in latencies(benchmark):
        for prompt, values in by_prompt if mode == "cache" else []:
            for column, key in (("first_token_ms", "ttft_ms"), ("token_ms", "token_ms")):
                rows.setdefault(prompt, {})[f"{engine}_{column}"] = values[key]["p50"]
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    found = ((prompt, *(row.get(column) for column in columns)) for prompt, row in sorted(rows.items()))
    return tab_separated(("prompt_tokens", *columns), found)


def tab_separated(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Lines of cells; None is an empty one."""
    lines = StringIO()
    csv.writer(lines, delimiter="\t", lineterminator="\n").writerows([header, *rows])
    return lines.getvalue()
