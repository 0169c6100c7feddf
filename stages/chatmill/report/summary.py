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
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from typing import Any, NamedTuple

from chatmill.report.curves import Curve
from chatmill.report.markup import Metrics, bits_range, get_nested, in_bits, number, percent, percent_range
from chatmill.report.speed import measured_latencies, nearest_latencies

ENGINE = "onnx"


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
    times = times_of(benchmark)
    return known(
        {
            "first_token_ms": get_nested(times, ENGINE, "ttft_ms", "p50"),
            "token_ms": get_nested(times, ENGINE, "token_ms", "p50"),
            "pytorch_token_ms": get_nested(times, "pytorch", "token_ms", "p50"),
            "peak_mb": get_nested(benchmark, ENGINE, "peak_memory_mb"),
            "encode_mb_per_s": get_nested(benchmark, "tokenizer", "encode_mb_per_s"),
        }
    )


def times_of(benchmark: Metrics) -> Metrics:
    """The times of each engine by which it is compared."""
    return {engine: one.times for engine, one in nearest_latencies(benchmark).items()}


def known(figures: Metrics) -> Metrics:
    """The figures that were measured, with four significant digits."""
    return {name: significant(value) for name, value in figures.items() if value is not None}


def significant(value: Any) -> Any:
    """A float rounded to four significant digits; anything else is unchanged."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


# The first screen of the report: the key figures with their intervals, beside others, and those of the last commit.

Limits = Sequence[float] | None
NGRAMS, NEAREST = "counted n-grams", "the answer to the nearest training message"
OTHERS = {  # what figures are compared with, and its places in the metrics
    "bits_per_byte": {NGRAMS: "bits_per_byte.baselines.ngram", "xz": "bits_per_byte.baselines.xz"},
    "bits_per_byte_answers": {NGRAMS: "bits_per_byte.ngram_assistant"},
    **{f"sense_{kind}": {NEAREST: f"sense.parrot.{kind}"} for kind in ("first", "later", "noisy")},
    "verbatim": {"true answers": "verbatim.true.share"},
}
BETTER, WORSE, UNCLEAR, SAME = VERDICTS = "now better", "now worse", "no clear change", "same"


class Kind(NamedTuple):
    """How figures and their intervals are written, and whether less is better."""

    show: Callable[[float | None], str]
    show_range: Callable[[Sequence[float]], str]
    less: bool


BITS, SHARE = Kind(in_bits, bits_range, True), Kind(percent, percent_range, False)
SIZE = Kind(lambda size: f"{number(size)} MB", bits_range, True)
TIME = Kind(lambda time: f"{number(time)} ms", lambda limits: f"95 % within {number(limits[1])} ms", True)
FIGURES = (  # name in summary.json or speeds.json, title, section with more, kind, and place of the interval
    ("bits_per_byte", "Bits per byte, all text", "Bits per byte", BITS, "bits_per_byte.all"),
    ("bits_per_byte_answers", "Bits per byte, answers", "Bits per byte", BITS, "bits_per_byte.assistant"),
    ("skills", "Skills, known phrasings", "Skills", SHARE, "skills.macro"),
    ("skills_held_back", "Skills, unseen phrasings", "Skills", SHARE, "skills.held_back.macro"),
    ("sense_first", "Sense, first replies", "Sample chats", SHARE, "sense.first"),
    ("sense_later", "Sense, later replies", "Sample chats", SHARE, "sense.later"),
    ("sense_noisy", "Sense, typing errors", "Sample chats", SHARE, "sense.noisy"),
    ("recall", "Facts recalled", "Sample chats", SHARE, "recall"),
    ("verbatim", "Copied answers", "Sample chats", SHARE._replace(less=True), "verbatim.share"),
    ("stops_rate", "Complete answers", "Sample chats", SHARE, "stops_rate"),
    ("first_token_ms", "Time to the first token", "Speed", TIME, "times.onnx.ttft_ms"),
    ("token_ms", "Time per token", "Speed", TIME, "times.onnx.token_ms"),
    ("pytorch_token_ms", "Time per token, PyTorch", "Speed", TIME, "times.pytorch.token_ms"),
    ("model_mb", "Size of the graph", "Speed", SIZE, "engines.onnx.size_mb"),
)


class Figure(NamedTuple):
    """A line of the first screen; `part` is the section with more."""

    title: str
    part: str
    others: str
    value: str
    interval: str
    former: str
    verdict: str


def first_screen(evaluation: Metrics, benchmark: Metrics, figures: Metrics, former: Metrics) -> list[Figure]:
    """The key figures of a run with their intervals, and whether they are better than the former ones."""
    times, rows = times_of(benchmark), []
    for name, title, part, kind, place in FIGURES:
        if (value := figures.get(name)) is None or (name == "pytorch_token_ms" and "token_ms" in figures):
            continue
        limits, old = _limits(evaluation, times, place), former.get(name)
        old = old if isinstance(old, int | float) else None
        interval, count = kind.show_range(limits) if limits else "", get_nested(evaluation, "counts", *place.split("."))
        interval += f"; {count:,} cases" if count else ""
        before = ("–", "") if old is None else (kind.show(old), _verdict(kind, value, old, limits))
        rows.append(Figure(title, part, _others(evaluation, name, kind), kind.show(value), interval, *before))
    return rows


def _limits(evaluation: Metrics, times: Metrics, place: str) -> Limits:
    """The interval of a figure; of a time its median and 95th percentile."""
    if percentiles := get_nested({"times": times}, *place.split(".")):
        return percentiles["p50"], percentiles["p95"]
    limits: Limits = get_nested(evaluation, "intervals", *place.split("."))
    return limits


def _others(evaluation: Metrics, name: str, kind: Kind) -> str:
    others = []
    for title, place in OTHERS.get(name, {}).items():
        value, limits = get_nested(evaluation, *place.split(".")), _limits(evaluation, {}, place)
        interval = f" ({kind.show_range(limits)})" if limits else ""
        others += [] if value is None else [f"{title}: {kind.show(value)}{interval}"]
    return "; ".join(others)


def _verdict(kind: Kind, value: float, old: float, limits: Limits) -> str:
    if value == old:
        return SAME
    if limits and limits[0] <= old <= limits[1]:
        return UNCLEAR
    return BETTER if (value < old) == kind.less else WORSE


# Tables for the plots of DVC: a header and rows, separated by tabs.

ENGINES = ("onnx", "pytorch")  # dvc.yaml names their columns
TIMES = {"first_token_ms": "ttft_ms", "token_ms": "token_ms"}


def plot_tables(curve: Curve, evaluation: Metrics, benchmark: Metrics) -> dict[str, str]:
    """Each table by the name of its file.

    That of validation has only the steps that measure it: in train.tsv DVC draws the other, empty cells as 0. Latencies
    are median milliseconds with a cache; one that was not measured is `nan`, which DVC leaves out.
    """
    cached = {(one.engine, one.prompt): one.times for one in measured_latencies(benchmark) if one.mode == "cache"}
    latencies = []
    for prompt in sorted({prompt for _, prompt in cached}):
        measured = [cached.get((engine, prompt)) for engine in ENGINES]
        cells = [get_nested(times, key, "p50", default="nan") for times in measured for key in TIMES.values()]
        latencies.append((prompt, *cells))
    columns = [f"{engine}_{name}" for engine in ENGINES for name in TIMES]
    by_source = get_nested(evaluation, "bits_per_byte", "by_source", default={})
    return {
        "validation.tsv": tab_separated(("step", "bits_per_byte"), curve.get("validation_bits_per_byte", [])),
        "bits_per_byte.tsv": tab_separated(("source", "bits_per_byte"), by_source.items()),
        "latency.tsv": tab_separated(("prompt_tokens", *columns), latencies),
    }


def tab_separated(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = StringIO()
    csv.writer(lines, delimiter="\t", lineterminator="\n").writerows((header, *rows))
    return lines.getvalue()
