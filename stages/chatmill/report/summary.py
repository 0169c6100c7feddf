"""The key figures of a run, by which runs are compared and which DVC tracks; git has those that a rerun gives again.

Bits per byte, skills, and `stops_rate` are measured on the test set, `validation_bits_per_byte` at the last
step of training that measures it. Shares of replies to a persona's user make sense: `sense_first` of those to first
messages, `sense_noisy` to ones with typing errors, `sense_later` to later ones, `recall` to questions for a fact that
was told; `verbatim` is the share of answers to talk that stand word for word in training data. `model_mb`,
`first_token_ms`, `token_ms` and `peak_mb` are of the float32 ONNX graph, `pytorch_token_ms` exists without one; times
are not in git. They are medians with a cache, after the prompt whose length is nearest to 128 tokens; `encode_mb_per_s`
is the tokenizer's speed with one thread. `general_before` and `general_after` are bits per byte of a general text under
the model that training started from, and under this one; `soft_tokenizer_bits_per_byte` is that of the model whose
embedding is made from the bytes of tokens, on some conversations of the test set.
A figure that a run did not measure is left out.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import StringIO
from typing import Any, NamedTuple

from chatmill.report.inputs import Curve
from chatmill.report.markup import Metrics, bits_range, get_nested, in_bits, number, percent, percent_range

PROMPT_TOKENS = 128  # near which the times of engines are compared


class Kind(NamedTuple):
    """How figures and their intervals are written, and whether less is better."""

    show: Callable[[float | None], str]
    show_range: Callable[[Sequence[float]], str]
    less: bool


class Row(NamedTuple):
    """A figure, its place in the metrics, and how it is shown on the first screen, if it is; `part` has more of it."""

    name: str
    place: str
    kind: Kind | None = None
    title: str = ""
    part: str = ""


BITS, SHARE = Kind(in_bits, bits_range, True), Kind(percent, percent_range, False)
SIZE = Kind(lambda size: f"{number(size)} MB", bits_range, True)
TIME = Kind(lambda time: f"{number(time)} ms", lambda limits: f"95 % within {number(limits[1])} ms", True)
FIGURES = (
    Row("bits_per_byte", "evaluation.bits_per_byte.all", BITS, "Bits per byte, all text", "Bits per byte"),
    Row("bits_per_byte_answers", "evaluation.bits_per_byte.assistant", BITS, "Bits per byte, answers", "Bits per byte"),
    Row("bits_per_byte_xz", "evaluation.bits_per_byte.baselines.xz"),
    Row("bits_per_byte_ngram", "evaluation.bits_per_byte.baselines.ngram"),
    Row("general_before", "evaluation.initial.before.general"),
    Row("general_after", "evaluation.initial.after.general"),
    Row("validation_bits_per_byte", "run.validation_bits_per_byte"),
    Row("soft_tokenizer_bits_per_byte", "soft_tokenizer.bits_per_byte.plugged_in.all"),
    Row("skills", "evaluation.skills.macro", SHARE, "Skills, known phrasings", "Skills"),
    Row("skills_held_back", "evaluation.skills.held_back.macro", SHARE, "Skills, unseen phrasings", "Skills"),
    Row("stops_rate", "evaluation.stops_rate", SHARE, "Complete answers", "Sample chats"),
    Row("sense_first", "evaluation.sense.first", SHARE, "Sense, first replies", "Sample chats"),
    Row("sense_later", "evaluation.sense.later", SHARE, "Sense, later replies", "Sample chats"),
    Row("sense_noisy", "evaluation.sense.noisy", SHARE, "Sense, typing errors", "Sample chats"),
    Row("recall", "evaluation.recall", SHARE, "Facts recalled", "Sample chats"),
    Row("verbatim", "evaluation.verbatim.share", SHARE._replace(less=True), "Copied answers", "Sample chats"),
    Row("model_mb", "evaluation.engines.onnx.size_mb", SIZE, "Size of the graph", "Speed"),
    Row("bytes_per_token", "evaluation.tokenizer.bytes_per_token"),
    Row("train_conversations", "mix.conversations.train"),
    Row("rejected", "run.rejected"),
    Row("leaked", "mix.leaked"),
    Row("processor", "run.processor"),
)
SPEEDS = (
    Row("first_token_ms", "times.onnx.ttft_ms.p50", TIME, "Time to the first token", "Speed"),
    Row("token_ms", "times.onnx.token_ms.p50", TIME, "Time per token", "Speed"),
    Row("pytorch_token_ms", "times.pytorch.token_ms.p50", TIME, "Time per token, PyTorch", "Speed"),
    Row("peak_mb", "benchmark.onnx.peak_memory_mb"),
    Row("encode_mb_per_s", "benchmark.tokenizer.encode_mb_per_s"),
)
NGRAMS, NEAREST = "counted n-grams", "the answer to the nearest training message"
OTHERS = {  # what figures are compared with, and its places in the metrics
    "bits_per_byte": {NGRAMS: "bits_per_byte.baselines.ngram", "xz": "bits_per_byte.baselines.xz"},
    "bits_per_byte_answers": {NGRAMS: "bits_per_byte.ngram_assistant"},
    **{f"sense_{kind}": {NEAREST: f"sense.parrot.{kind}"} for kind in ("first", "later", "noisy")},
    "verbatim": {"true answers": "verbatim.true.share"},
}
BETTER, WORSE, UNCLEAR, SAME = VERDICTS = "now better", "now worse", "no clear change", "same"


def key_figures(
    mix: Metrics, curve: Curve, evaluation: Metrics, benchmark: Metrics, soft_tokenizer: Metrics
) -> Metrics:
    """The figures by name, with four significant digits, and how they were computed: another way gives another model.

    One name stands for several generations of a processor, which differ in precision, and in whether they compile.
    """
    validation, rejected = curve.get("validation_bits_per_byte"), mix.get("rejected")
    how = at(evaluation, "model.precision"), at(evaluation, "model.compile") and "compiled"
    run = {
        "validation_bits_per_byte": validation[-1][1] if validation else None,
        "rejected": None if rejected is None else sum(sum(reasons.values()) for reasons in rejected.values()),
        "processor": ", ".join(filter(None, (at(benchmark, "machine.processor"), *how))) or None,
    }
    metrics = {"run": run, "mix": mix, "evaluation": evaluation, "soft_tokenizer": soft_tokenizer}
    return {row.name: significant(value) for row in FIGURES if (value := at(metrics, row.place)) is not None}


def speeds_of(benchmark: Metrics) -> Metrics:
    """The figures that another run of the same code measures a little differently."""
    metrics = {"times": times_of(benchmark), "benchmark": benchmark}
    return {row.name: significant(value) for row in SPEEDS if (value := at(metrics, row.place)) is not None}


class Latency(NamedTuple):
    engine: str
    mode: str  # "cache" or "recompute"
    prompt: int  # tokens
    times: Metrics


def measured_latencies(benchmark: Metrics) -> Iterator[Latency]:
    for engine, content in benchmark.items():
        for mode in ("cache", "recompute"):
            measured = get_nested(content, mode, default={})
            for prompt in sorted(measured, key=int):
                yield Latency(engine, mode, int(prompt), measured[prompt])


def cached_latencies(benchmark: Metrics) -> list[Latency]:
    """Those with a cache, in the order of how near the length of their prompts is to PROMPT_TOKENS."""
    cached = (one for one in measured_latencies(benchmark) if one.mode == "cache")
    return sorted(cached, key=lambda one: abs(one.prompt - PROMPT_TOKENS))


def times_of(benchmark: Metrics) -> Metrics:
    """The times of each engine by which it is compared."""
    return {one.engine: one.times for one in reversed(cached_latencies(benchmark))}


def fastest(benchmark: Metrics) -> tuple[str | None, int | None, float | None]:
    """(engine, prompt tokens, ms) of the least time per token, at the length that is nearest to PROMPT_TOKENS."""
    times = [
        (abs(one.prompt - PROMPT_TOKENS), get_nested(one.times, "token_ms", "p50"), one.engine, one.prompt)
        for one in cached_latencies(benchmark)
    ]
    _, milliseconds, engine, prompt = min(times, default=(None, None, None, None))
    return engine, prompt, milliseconds


def at(metrics: Metrics, place: str) -> Any:
    return get_nested(metrics, *place.split("."))


def significant(value: Any) -> Any:
    """A float rounded to four significant digits; anything else is unchanged."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


# The first screen of the report: the key figures with their intervals, beside others, and those of the last commit.


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
    times, shown = times_of(benchmark), []
    for name, place, kind, title, part in FIGURES + SPEEDS:
        value, old = figures.get(name), former.get(name)
        if kind is None or value is None or (name == "pytorch_token_ms" and "token_ms" in figures):
            continue
        measured = place.removeprefix("evaluation.")
        limits, count = at(evaluation, f"intervals.{measured}"), at(evaluation, f"counts.{measured}")
        if kind is TIME:
            percentiles = get_nested({"times": times}, *place.split(".")[:-1])
            limits = percentiles["p50"], percentiles["p95"]
        interval = (kind.show_range(limits) if limits else "") + (f"; {count:,} cases" if count else "")
        before = ("–", "")
        if isinstance(old, int | float):
            before = kind.show(old), _verdict(kind, value, old, limits)
        shown.append(Figure(title, part, _others(evaluation, name, kind), kind.show(value), interval, *before))
    return shown


def _others(evaluation: Metrics, name: str, kind: Kind) -> str:
    others = []
    for title, place in OTHERS.get(name, {}).items():
        limits = at(evaluation, f"intervals.{place}")
        interval = f" ({kind.show_range(limits)})" if limits else ""
        if (value := at(evaluation, place)) is not None:
            others.append(f"{title}: {kind.show(value)}{interval}")
    return "; ".join(others)


def _verdict(kind: Kind, value: float, old: float, limits: Sequence[float] | None) -> str:
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
