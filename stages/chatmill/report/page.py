"""The page of a run, made from its metrics by a template."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import ChainableUndefined, Environment, Template, Undefined

from chatmill.report import markup
from chatmill.report.inputs import Origin
from chatmill.report.markup import Html, Metrics, get_nested, in_bits, percent
from chatmill.report.speed import PROMPT_TOKENS, latency_chart, measured_latencies
from chatmill.report.summary import BETTER, VERDICTS, WORSE, Figure

ENGINE_TOLERANCE = 1e-3  # bits per byte by which engines of full precision may differ
RIVALS = {"xz": "xz", "ngram": "counted n-grams"}  # the baselines that a model should surpass
MIN_STOPS_RATE = 0.99  # share of answers that should end by themselves
TOKEN_SUBSETS = {"kept": "trained on", "held_out": "held out", "all": "all, trained on"}  # tokens of the soft tokenizer


def page(
    origin: Origin,
    figures: Sequence[Figure] = (),
    evaluation: Metrics | None = None,
    benchmark: Metrics | None = None,
    soft_tokenizer: Metrics | None = None,
    **content: object,
) -> Html:
    """The whole page; what was not measured is left out of it. The template names what else `content` may have."""
    evaluation, benchmark, soft_tokenizer = evaluation or {}, benchmark or {}, soft_tokenizer or {}
    counts = Counter(figure.verdict for figure in figures)
    content |= {
        "origin": origin,
        "figures": figures,
        "verdicts": {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]},
        "colors": {BETTER: "holds", WORSE: "fails"},
        "prompt_tokens": PROMPT_TOKENS,
        "evaluation": evaluation,
        "checks": checks(evaluation),
        "skills": skill_names(evaluation),
        "benchmark": benchmark,
        "soft_tokenizer": soft_tokenizer,
        "soft_subsets": [(title, soft_tokenizer[key]) for key, title in TOKEN_SUBSETS.items() if key in soft_tokenizer],
    }
    if latencies := list(measured_latencies(benchmark)):
        limit, cached = get_nested(benchmark, "limit", "token_ms"), [one for one in latencies if one.mode == "cache"]
        content["latencies"] = latencies
        content["time_per_token"] = latency_chart("Time per token", "token_ms", latencies, limit)
        content["time_to_first_token"] = latency_chart("Time to the first token", "ttft_ms", cached)
    title = f"chatmill report: {origin.name}" if origin.name else "chatmill report"
    return markup.document(title, Html(_template().render(content)))


def checks(evaluation: Metrics) -> list[tuple[bool, str]]:
    """The claims that should be true of each run, and whether they are."""
    bits = get_nested(evaluation, "bits_per_byte", default={})
    own, found = get_nested(bits, "all"), []
    for key, name in RIVALS.items():
        if own is not None and (value := get_nested(bits, "baselines", key)) is not None:
            claim = f"The model needs fewer bits per byte than {name}: {in_bits(own)}, {in_bits(value)}."
            found.append((own < value, claim))
    exact = [get_nested(evaluation, "engines", name, "bits_per_byte") for name in ("pytorch", "onnx", "onnx_hf")]
    measured = [value for value in exact if value is not None]
    if len(measured) > 1:
        apart = max(measured) - min(measured)
        found.append((apart <= ENGINE_TOLERANCE, f"Engines of full precision differ by {apart:.6f} bits per byte."))
    if (stops := get_nested(evaluation, "stops_rate")) is not None:
        found.append((stops >= MIN_STOPS_RATE, f"{percent(stops)} of the answers end before the limit of tokens."))
    return found


def skill_names(evaluation: Metrics) -> list[str]:
    known = get_nested(evaluation, "skills", default={})
    names = sorted({*known, *get_nested(known, "held_back", default={})} - {"macro", "held_back"})
    return [*names, "macro"] if names else []


@cache
def _template() -> Template:
    settings: dict[str, Any] = {"lstrip_blocks": True, "trim_blocks": True, "undefined": ChainableUndefined}
    environment = Environment(autoescape=True, finalize=markup.to_html, **settings)
    for show in (markup.number, percent, in_bits, markup.percent_range, markup.bits_range):
        environment.filters[show.__name__] = _of_measured(show)
    environment.filters |= {"anchor": markup.anchor, "spaced": lambda name: name.replace("_", " ")}
    return environment.from_string(files("chatmill.report").joinpath("sections.html.jinja").read_text("utf-8"))


def _of_measured(show: Callable[..., str]) -> Callable[..., str]:
    def shown(value: Any, *options: int) -> str:
        return show(None if isinstance(value, Undefined) else value, *options)

    return shown
