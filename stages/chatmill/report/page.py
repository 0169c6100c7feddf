"""The page of a run, made from its metrics by a template."""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import ChainableUndefined, Environment, Template

from chatmill.report import markup
from chatmill.report.chart import latency_chart
from chatmill.report.inputs import Origin
from chatmill.report.markup import Html, Metrics, get_nested
from chatmill.report.summary import BETTER, PROMPT_TOKENS, VERDICTS, WORSE, Figure, measured_latencies

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
    known = get_nested(evaluation, "skills", default={})
    skills = sorted({*known, *get_nested(known, "held_back", default={})} - {"macro", "held_back"})
    counts = Counter(figure.verdict for figure in figures)
    content |= {
        "origin": origin,
        "figures": figures,
        "verdicts": {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]},
        "colors": {BETTER: "holds", WORSE: "fails"},
        "prompt_tokens": PROMPT_TOKENS,
        "evaluation": evaluation,
        "skills": [*skills, "macro"] if skills else [],
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


@cache
def _template() -> Template:
    settings: dict[str, Any] = {"lstrip_blocks": True, "trim_blocks": True, "undefined": ChainableUndefined}
    environment = Environment(autoescape=True, finalize=markup.to_html, **settings)
    shown = (markup.number, markup.percent, markup.in_bits, markup.percent_range, markup.bits_range)
    environment.filters |= {show.__name__: show for show in shown}
    environment.filters |= {"anchor": markup.anchor, "spaced": lambda name: name.replace("_", " ")}
    return environment.from_string(files("chatmill.report").joinpath("sections.html.jinja").read_text("utf-8"))
