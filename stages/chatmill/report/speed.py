"""The report's section on speed."""

from collections.abc import Iterator

from chatmill.report.chart import Line, category_axis, line_chart, log_axis
from chatmill.report.markup import Html, Metrics, folded, get_nested, in_bits, number, percent, table, tag

Latency = tuple[str, str, list[tuple[int, Metrics]]]  # engine, mode (cache or recompute), times by prompt length
PROMPT_TOKENS = 128  # near which the times of engines are compared
ENGINE_COLORS = (0, 1, 2, 3, 5, 6)  # of the page's palette; 4 is the grey of limits and baselines
CACHED = (
    " More than 100 % of it is reached where the weights stay in the processor's cache, which is faster than memory."
)


def measured_latencies(benchmark: Metrics) -> Iterator[Latency]:
    for engine, content in benchmark.items():
        for mode in ("cache", "recompute"):
            if isinstance(measured := get_nested(content, mode), dict) and measured:
                yield engine, mode, sorted((int(prompt), values) for prompt, values in measured.items())


def fastest(benchmark: Metrics) -> tuple[str | None, int | None, float | None]:
    """(engine, prompt tokens, ms) of the engine with the least time per token, near a prompt of PROMPT_TOKENS."""
    times = [
        (abs(prompt - PROMPT_TOKENS), get_nested(values, "token_ms", "p50"), engine, prompt)
        for engine, mode, measured in measured_latencies(benchmark)
        for prompt, values in measured
        if mode == "cache"
    ]
    _, milliseconds, engine, prompt = min(times, default=(None, None, None, None))
    return engine, prompt, milliseconds


def speed(evaluation: Metrics, benchmark: Metrics) -> Html:
    measured = list(measured_latencies(benchmark))
    if not measured:
        return Html()
    charts = [
        latency_chart("Time per token", "token_ms", measured, get_nested(benchmark, "limit", "token_ms")),
        latency_chart("Time to the first token", "ttft_ms", [one for one in measured if one[1] == "cache"], None),
    ]
    note = (
        "Median of repeated runs; thin vertical lines reach up to the 95th percentile. Dashed lines: without a cache, "
        "where each token processes the complete text again; the first token is the same work in both modes. Memory "
        "limit: the time to read the weights and the cache once at this machine's memory bandwidth; the limit of the "
        "first token also accounts for the matrix products of its prompt."
    )
    return folded(
        "Speed",
        "time per token and to the first one, by length of the prompt, and the engines",
        tag("p", note + (CACHED if exceeds_limit(benchmark, measured) else ""), class_="note"),
        tag("div", *charts, class_="columns"),
        tag("details", tag("summary", "As a table"), latency_table(measured)),
        engine_table(evaluation, benchmark),
    )


def exceeds_limit(benchmark: Metrics, measured: list[Latency]) -> bool:
    shares = list(get_nested(benchmark, "limit", "reached", default={}).values())
    for _, _, by_prompt in measured:
        shares += [get_nested(values, "reached", "token", default=0) for _, values in by_prompt]
    return any(share > 1 for share in shares)


def latency_chart(title: str, key: str, measured: list[Latency], limit: float | None) -> Html:
    """A chart with one line for each engine and mode, and one for the limit of the machine."""
    engines = list(dict.fromkeys(engine for engine, _, _ in measured))
    lines = [
        Line(
            engine if mode == "cache" else f"{engine}, no cache",
            [(prompt, values[key]["p50"]) for prompt, values in by_prompt],
            ENGINE_COLORS[engines.index(engine) % len(ENGINE_COLORS)],
            dashed=mode == "recompute",
            upper=[values[key]["p95"] for _, values in by_prompt],
        )
        for engine, mode, by_prompt in measured
    ]
    prompts = [prompt for line in lines for prompt, _ in line.points]
    if limit is not None:
        lines.append(Line("memory limit", [(min(prompts), limit), (max(prompts), limit)], color=4))
    times = [time for line in lines for time in [*line.upper, *(time for _, time in line.points)]]
    return line_chart(title, lines, category_axis("tokens of the prompt", prompts), log_axis("milliseconds", times))


def latency_table(measured: list[Latency]) -> Html:
    """The values of the charts, and the time to the first token without a cache, which they leave out."""
    rows = (
        (
            f"{engine}, {mode}",
            number(prompt),
            *(number(values[key][rank]) for key in ("ttft_ms", "token_ms") for rank in ("p50", "p95")),
            *(percent(get_nested(values, "reached", key)) for key in ("ttft", "token")),
        )
        for engine, mode, by_prompt in measured
        for prompt, values in by_prompt
    )
    head = (
        "engine",
        "prompt tokens",
        "first token p50",
        "p95",
        "each token p50",
        "p95",
        "first: of limit",
        "each: of limit",
    )
    return table("Milliseconds, and the machine's limit as a share of them", head, rows)


def engine_table(evaluation: Metrics, benchmark: Metrics) -> Html:
    rows = [
        (
            name,
            in_bits(get_nested(values, "bits_per_byte")),
            percent(get_nested(values, "skills_macro")),
            number(get_nested(values, "size_mb"), decimals=1),
            number(get_nested(benchmark, name, "peak_memory_mb"), decimals=0),
            percent(get_nested(benchmark, "limit", "reached", name)),
        )
        for name, values in get_nested(evaluation, "engines", default={}).items()
    ]
    head = ("engine", "bits per byte", "skills", "file, MB", "peak memory, MB", "of memory limit")
    return table("Engines (skills on a sample of the questions; the memory limit on the longest prompt)", head, rows)
