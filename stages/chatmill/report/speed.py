"""How fast each engine is: its times by length of the prompt, and their charts."""

from collections.abc import Iterator
from typing import NamedTuple

from chatmill.report.chart import Line, category_axis, line_chart, log_axis
from chatmill.report.markup import Html, Metrics, get_nested

PROMPT_TOKENS = 128  # near which the times of engines are compared
ENGINE_COLORS = (0, 1, 2, 3, 5, 6)  # of the page's palette; 4 is the grey of limits and baselines


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


def nearest_latencies(benchmark: Metrics) -> dict[str, Latency]:
    """That of each engine with its cache, after the prompt whose length is nearest to PROMPT_TOKENS."""
    cached = (one for one in measured_latencies(benchmark) if one.mode == "cache")
    return {one.engine: one for one in sorted(cached, key=_distance, reverse=True)}


def fastest(benchmark: Metrics) -> tuple[str | None, int | None, float | None]:
    """(engine, prompt tokens, ms) of the engine with the least time per token, near a prompt of PROMPT_TOKENS."""
    nearest = nearest_latencies(benchmark).values()
    times = [(_distance(one), get_nested(one.times, "token_ms", "p50"), one.engine, one.prompt) for one in nearest]
    _, milliseconds, engine, prompt = min(times, default=(None, None, None, None))
    return engine, prompt, milliseconds


def _distance(latency: Latency) -> int:
    return abs(latency.prompt - PROMPT_TOKENS)


def latency_chart(title: str, key: str, latencies: list[Latency], limit: float | None = None) -> Html:
    """A chart with one line for each engine and mode, and one for the limit of the machine."""
    by_line: dict[tuple[str, str], list[Latency]] = {}
    for one in latencies:
        by_line.setdefault((one.engine, one.mode), []).append(one)
    engines = list(dict.fromkeys(engine for engine, _ in by_line))
    lines = [
        Line(
            engine if mode == "cache" else f"{engine}, no cache",
            [(one.prompt, one.times[key]["p50"]) for one in measured],
            ENGINE_COLORS[engines.index(engine) % len(ENGINE_COLORS)],
            dashed=mode == "recompute",
            upper=[one.times[key]["p95"] for one in measured],
        )
        for (engine, mode), measured in by_line.items()
    ]
    prompts = [one.prompt for one in latencies]
    if limit is not None:
        lines.append(Line("memory limit", [(min(prompts), limit), (max(prompts), limit)], color=4))
    times = [time for line in lines for time in [*line.upper, *(time for _, time in line.points)]]
    return line_chart(title, lines, category_axis("tokens of the prompt", prompts), log_axis("milliseconds", times))
