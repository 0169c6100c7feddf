"""The key figures of a run, by which runs are compared and which DVC tracks as metrics; those in git can be repeated.

Bits per byte, skills, and `stops_rate` are measured on the test set, `validation_bits_per_byte` at the last
step of training that measures it. `sense_first`, `sense_later`, `sense_noisy` and `recall` are shares of replies to a
persona's user that make sense; `verbatim` is the share of answers to talk that stand word for word in training data.
`model_mb` is that of the float32 ONNX graph, as are `first_token_ms`, `token_ms` and `peak_mb`, which are not in git;
`pytorch_token_ms` also exists for models without a graph. Times are medians with a cache, after the prompt whose length
is nearest to 128 tokens. `encode_mb_per_s` is the tokenizer's speed with one thread.
`general_before` and `general_after` are bits per byte of a general text under the model that training started from, and
under this one. `soft_tokenizer_bits_per_byte` is that of the model with rows made from bytes, on some conversations of
the test set.
A figure that a run did not measure is left out.
"""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any

from chatmill.report.markup import Metrics, get_nested
from chatmill.report.sections import Curve
from chatmill.report.speed import measured_latencies

ENGINE = "onnx"
PROMPT_TOKENS = 128


def key_figures(
    mix: Metrics, curve: Curve, evaluation: Metrics, benchmark: Metrics, soft_tokenizer: Metrics
) -> Metrics:
    """The figures by name, with four significant digits, and how they were computed: another way gives another model.

    One name stands for several generations of a processor, which differ in precision, and in whether they compile.
    """
    validation = curve.get("validation_bits_per_byte")
    rejected = get_nested(mix, "rejected")
    how = get_nested(evaluation, "model", "precision"), get_nested(evaluation, "model", "compile") and "compiled"
    figures = {
        "bits_per_byte": get_nested(evaluation, "bits_per_byte", "all"),
        "bits_per_byte_answers": get_nested(evaluation, "bits_per_byte", "assistant"),
        "bits_per_byte_xz": get_nested(evaluation, "bits_per_byte", "baselines", "xz"),
        "bits_per_byte_ngram": get_nested(evaluation, "bits_per_byte", "baselines", "ngram"),
        "general_before": get_nested(evaluation, "initial", "before", "general"),
        "general_after": get_nested(evaluation, "initial", "after", "general"),
        "validation_bits_per_byte": validation[-1][1] if validation else None,
        "soft_tokenizer_bits_per_byte": get_nested(soft_tokenizer, "bits_per_byte", "plugged_in", "all"),
        "skills": get_nested(evaluation, "skills", "macro"),
        "skills_held_back": get_nested(evaluation, "skills", "held_back", "macro"),
        "stops_rate": get_nested(evaluation, "stops_rate"),
        "sense_first": get_nested(evaluation, "sense", "first"),
        "sense_later": get_nested(evaluation, "sense", "later"),
        "sense_noisy": get_nested(evaluation, "sense", "noisy"),
        "recall": get_nested(evaluation, "recall"),
        "verbatim": get_nested(evaluation, "verbatim", "share"),
        "model_mb": get_nested(evaluation, "engines", ENGINE, "size_mb"),
        "bytes_per_token": get_nested(evaluation, "tokenizer", "bytes_per_token"),
        "train_conversations": get_nested(mix, "conversations", "train"),
        "rejected": None if rejected is None else sum(sum(reasons.values()) for reasons in rejected.values()),
        "leaked": get_nested(mix, "leaked"),
        "processor": ", ".join(filter(None, (get_nested(benchmark, "machine", "processor"), *how))) or None,
    }
    return known(figures)


def speeds_of(benchmark: Metrics) -> Metrics:
    """The figures that another run of the same code measures a little differently."""
    times = times_by_engine(benchmark)
    return known(
        {
            "first_token_ms": get_nested(times, ENGINE, "ttft_ms", "p50"),
            "token_ms": get_nested(times, ENGINE, "token_ms", "p50"),
            "pytorch_token_ms": get_nested(times, "pytorch", "token_ms", "p50"),
            "peak_mb": get_nested(benchmark, ENGINE, "peak_memory_mb"),
            "encode_mb_per_s": get_nested(benchmark, "tokenizer", "encode_mb_per_s"),
        }
    )


def known(figures: Metrics) -> Metrics:
    """The figures that were measured, with four significant digits."""
    return {name: significant(value) for name, value in figures.items() if value is not None}


def times_by_engine(benchmark: Metrics) -> dict[str, Metrics]:
    """The times of each engine with its cache, after the prompt whose length is nearest to PROMPT_TOKENS."""
    return {
        engine: min(by_prompt, key=lambda measured: abs(measured[0] - PROMPT_TOKENS))[1]
        for engine, mode, by_prompt in measured_latencies(benchmark)
        if mode == "cache"
    }


def significant(value: Any) -> Any:
    """A float rounded to four significant digits; anything else is unchanged."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


# Tables for the plots of DVC: a header and rows, separated by tabs.

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
