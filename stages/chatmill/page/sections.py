"""The sections of the report: each takes metrics as they stand in their files, and leaves out what was not measured."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from chatmill.page.chart import Line, bar, category_axis, line_chart, linear_axis, log_axis, number, percent
from chatmill.page.markup import Html, join, table, tag

MAX_POINTS = 200  # of a training curve; longer ones are averaged
AGREEMENT = 1e-3  # bits per byte by which engines of full precision may differ
STOPS = 0.99  # share of answers that should end by themselves

Metrics = dict[str, Any]
Curve = dict[str, list[tuple[float, float]]]  # (step, value) of each column
Latency = tuple[str, str, list[tuple[int, Metrics]]]  # engine, cache or recompute, and times by prompt length


def at(metrics: Any, *keys: str, default: Any = None) -> Any:
    """What stands under a path of keys; `default` where a run did not measure it."""
    for key in keys:
        metrics = metrics.get(key) if isinstance(metrics, dict) else None
    return default if metrics is None else metrics


def section(title: str, *content: object) -> Html:
    """A part of the page under its heading."""
    return tag("section", tag("h2", title), *content)


def summary(evaluation: Metrics, benchmark: Metrics) -> Html:
    """The figures that say most."""
    bits = at(evaluation, "bits_per_byte")
    engine, prompt, milliseconds = fastest(benchmark)
    figures = [
        ("Bits per byte, all text", in_bits(at(bits, "all")), f"xz {in_bits(at(bits, 'baselines', 'xz'))}"),
        ("Bits per byte, answers", in_bits(at(bits, "assistant")), "the assistant's text alone"),
        ("Skills", percent(at(evaluation, "skills", "macro")), "on known phrasings"),
        ("Skills, held back", percent(at(evaluation, "skills", "held_back", "macro")), "on phrasings never seen"),
        ("Answers that end", percent(at(evaluation, "stops_rate")), "by themselves"),
        ("Time per token", f"{number(milliseconds)} ms", f"{engine}, after {prompt} tokens" if engine else ""),
    ]
    tiles = (tag("div", tag("dt", name), tag("dd", value, tag("small", note))) for name, value, note in figures)
    return tag("dl", *tiles, class_="tiles")


def in_bits(value: float | None) -> str:
    """Bits per byte as text."""
    return number(value, decimals=3)


def checks(evaluation: Metrics) -> Html:
    """What should hold of any run."""
    items = [
        tag("li", tag("span", "holds" if holds else "fails", class_="holds" if holds else "fails"), f" {claim}")
        for holds, claim in claims(evaluation)
    ]
    return section("Checks", tag("ul", *items)) if items else Html()


def claims(evaluation: Metrics) -> Iterator[tuple[bool, str]]:
    """Whether each check holds, and what it says; of what was measured."""
    bits, xz = at(evaluation, "bits_per_byte", "all"), at(evaluation, "bits_per_byte", "baselines", "xz")
    if bits is not None and xz is not None:
        yield bits < xz, f"All text takes fewer bits per byte than with xz: {in_bits(bits)} against {in_bits(xz)}."
    exact = [at(evaluation, "engines", name, "bits_per_byte") for name in ("pytorch", "onnx", "onnx_hf")]
    measured = [value for value in exact if value is not None]
    if len(measured) > 1:
        apart = max(measured) - min(measured)
        yield apart <= AGREEMENT, f"Engines of full precision agree: {apart:.6f} bits per byte apart at most."
    if (stops := at(evaluation, "stops_rate")) is not None:
        yield stops >= STOPS, f"Answers end by themselves: {percent(stops)}."


def training(curve: Curve) -> Html:
    """Loss and bits per byte by step."""
    charts = []
    for title, unit, columns in (
        ("Loss", "nats per token", {"loss": "training"}),
        ("Bits per byte", "bits per byte", {"bits_per_byte": "training", "validation_bits_per_byte": "validation"}),
    ):
        lines = [
            Line(name, averaged(curve[column]), color)
            for color, (column, name) in enumerate(columns.items())
            if curve.get(column)
        ]
        if lines:
            points = [point for line in lines for point in line.points]
            x, y = linear_axis("step", [step for step, _ in points]), linear_axis(unit, [value for _, value in points])
            charts.append(line_chart(title, lines, x, y))
    return section("Training", tag("div", *charts, class_="columns")) if charts else Html()


def averaged(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most MAX_POINTS points: each the mean of those that follow one another, at the last one's place."""
    size = -(-len(points) // MAX_POINTS)
    groups = [points[start : start + size] for start in range(0, len(points), size)] if points else []
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


def compression(evaluation: Metrics) -> Html:
    """Bits per byte beside what knows nothing of chats, and by source."""
    bits = at(evaluation, "bits_per_byte", default={})
    names = {"uniform": "no model (8 bits)", "order0": "frequencies of bytes", "xz": "xz"}
    values = [(names[name], at(bits, "baselines", name), 4) for name in names]
    values += [("this model, all text", at(bits, "all"), 0), ("this model, answers", at(bits, "assistant"), 2)]
    sources = [(name, value, 0) for name, value in at(bits, "by_source", default={}).items()]
    if not bits:
        return Html()
    note = "Lower is better. Control tokens are not counted; the baselines compress exactly the same bytes."
    return section(
        "Bits per byte of held-out text",
        tag("p", note, " ", at(bits, "note", default=""), class_="note"),
        tag(
            "div",
            bars("Beside methods that know nothing of chats", values),
            bars("By source", sources),
            class_="columns",
        ),
    )


def bars(caption: str, values: Sequence[tuple[str, float | None, int]]) -> Html:
    """A table of one value a row, with a bar in its colour."""
    longest = max((value for _, value, _ in values if value is not None), default=1) or 1
    rows = (
        (name, in_bits(value), bar(None if value is None else value / longest, color)) for name, value, color in values
    )
    return table(caption, ("", "bits per byte", ""), rows)


def skills(evaluation: Metrics) -> Html:
    """Accuracy by skill, on known and on held-back phrasings."""
    known, held_back = at(evaluation, "skills", default={}), at(evaluation, "skills", "held_back", default={})
    names = sorted({*known, *held_back} - {"macro", "held_back"})
    if not names:
        return Html()
    rows = []
    for name in [*names, "macro"]:
        shares = known.get(name), held_back.get(name)
        title = "mean of all" if name == "macro" else name.replace("_", " ")
        rows.append((title, percent(shares[0]), bar(shares[0]), percent(shares[1]), bar(shares[1], 1)))
    note = "Share of right answers, greedy, on numbers, names and orders that training did not see."
    head = ("skill", "known", "", "held back", "")
    return section(
        "Skills",
        tag("p", note, class_="note"),
        tag("div", table("By phrasing of the question", head, rows), class_="total"),
    )


def chats(samples: Iterable[Metrics]) -> Html:
    """Free prompts and their answers, unedited."""
    shown = []
    for sample in samples:
        asked = tag("p", sample["prompt"], class_="asked", dir="auto")
        cut = "" if sample["stopped"] else tag("span", " … cut off", class_="cut")
        shown.append(tag("div", asked, tag("p", sample["answer"], cut, class_="answer", dir="auto"), class_="chat"))
    note = tag("p", "Greedy answers to prompts that were chosen beforehand, unedited.", class_="note")
    return section("Sample chats", note, tag("div", *shown, class_="chats")) if shown else Html()


def latencies(benchmark: Metrics) -> Iterator[Latency]:
    """All that was measured."""
    for engine, content in benchmark.items():
        for mode in ("cache", "recompute"):
            if isinstance(measured := at(content, mode), dict) and measured:
                yield engine, mode, sorted((int(prompt), values) for prompt, values in measured.items())


def fastest(benchmark: Metrics) -> tuple[str | None, int | None, float | None]:
    """(engine, prompt tokens, ms) of the engine with the least time per token after its longest prompt."""
    times = [
        (at(values, "token_ms", "p50"), engine, prompt)
        for engine, mode, measured in latencies(benchmark)
        if mode == "cache"
        for prompt, values in measured[-1:]
    ]
    milliseconds, engine, prompt = min(times, default=(None, None, None))
    return engine, prompt, milliseconds


def speed(evaluation: Metrics, benchmark: Metrics) -> Html:
    """Latency by prompt length, engines beside one another, and the machine."""
    measured = list(latencies(benchmark))
    if not measured:
        return Html()
    charts = [
        latency_chart("Time per token", "token_ms", measured, at(benchmark, "limit", "token_ms")),
        latency_chart("Time to the first token", "ttft_ms", measured, None),
    ]
    machine = "; ".join(
        f"{key.replace('_', ' ')} {value}" for key, value in at(benchmark, "machine", default={}).items()
    )
    note = (
        "Median of repeated runs; thin lines reach up to the 95th percentile. Dashed: without a cache, everything is "
        "read again for each token. Memory limit: reading weights and cache once, as fast as this machine can."
    )
    return section(
        "Speed",
        tag("p", note, class_="note"),
        tag("div", *charts, class_="columns"),
        tag("details", tag("summary", "As a table"), latency_table(measured)),
        engine_table(evaluation, benchmark),
        tag("p", f"Measured on: {machine}.", class_="note") if machine else "",
    )


def latency_chart(title: str, key: str, measured: list[Latency], limit: float | None) -> Html:
    """One line for each engine with and without its cache, and what the machine allows."""
    engines = list(dict.fromkeys(engine for engine, _, _ in measured))
    lines = [
        Line(
            engine if mode == "cache" else f"{engine}, no cache",
            [(prompt, values[key]["p50"]) for prompt, values in by_prompt],
            engines.index(engine) % 4,
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
    """All that the charts show."""
    rows = (
        (
            f"{engine}, {mode}",
            number(prompt),
            *(number(values[key][rank]) for key in ("ttft_ms", "token_ms") for rank in ("p50", "p95")),
        )
        for engine, mode, by_prompt in measured
        for prompt, values in by_prompt
    )
    head = ("engine", "prompt tokens", "first token p50", "p95", "each token p50", "p95")
    return table("Milliseconds", head, rows)


def engine_table(evaluation: Metrics, benchmark: Metrics) -> Html:
    """What each engine costs and what it is worth."""
    rows = [
        (
            name,
            in_bits(at(values, "bits_per_byte")),
            percent(at(values, "skills_macro")),
            number(at(values, "size_mb"), decimals=1),
            number(at(benchmark, name, "peak_memory_mb"), decimals=0),
            percent(at(benchmark, "limit", "reached", name)),
        )
        for name, values in at(evaluation, "engines", default={}).items()
    ]
    head = ("engine", "bits per byte", "skills", "file, MB", "peak memory, MB", "of memory limit")
    return table("Engines (skills on a sample of the questions; the memory limit on the longest prompt)", head, rows)


def data(mix: Metrics) -> Html:
    """What the sources gave, and what was left out and why."""
    splits = list(at(mix, "conversations", default={}))
    rows = [(name, number(at(mix, "conversations", name)), number(at(mix, "bytes", name))) for name in splits]
    dropped = [
        (f"{source}: {reason.replace('_', ' ')}", number(count))
        for source, reasons in at(mix, "rejected", default={}).items()
        for reason, count in reasons.items()
    ]
    dropped += [
        ("duplicates of another conversation", number(at(mix, "duplicates"))),
        ("in training, but equal to held-out text", number(at(mix, "leaked"))),
    ]
    return section(
        "Data",
        tag(
            "div",
            table("Split by group", ("", "conversations", "bytes"), rows),
            table("Left out", ("", "conversations"), dropped),
            class_="columns",
        ),
    )


def tokenizer(evaluation: Metrics, benchmark: Metrics, *shown: Html) -> Html:
    """How the tokenizer cuts text, and how fast."""
    values = at(evaluation, "tokenizer", default={})
    sizes = [("bytes per token", number(at(values, "bytes_per_token")))]
    sizes += [
        (f"bytes per token of {name}", number(value)) for name, value in at(values, "compared", default={}).items()
    ]
    sizes += [
        (f"tokens per message, {name}", number(value))
        for name, value in at(values, "tokens_per_message", default={}).items()
    ]
    units = {
        "encode_mb_per_s": "encoding, MB/s",
        "decode_mb_per_s": "decoding, MB/s",
        "lookup_ns": "looking one token up, ns",
        "open_ms": "opening tokenizer.bin, ms",
    }
    speeds = [
        (units[key], number(value)) for key, value in at(benchmark, "tokenizer", default={}).items() if key in units
    ]
    tables = table("On held-out text", ("", ""), sizes), table("Speed", ("", ""), speeds)
    return section("Tokenizer", *shown, tag("div", *tables, class_="columns"))
