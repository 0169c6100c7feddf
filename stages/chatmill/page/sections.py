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


def at(metrics: Any, *keys: str) -> Any:
    """What stands under a path of keys; None where a run did not measure it."""
    for key in keys:
        metrics = metrics.get(key) if isinstance(metrics, dict) else None
    return metrics


def section(title: str, *content: object) -> Html:
    """A part of the page under its heading."""
    return tag("section", tag("h2", title), *content)


def summary(evaluation: Metrics, benchmark: Metrics) -> Html:
    """The figures that say most."""
    bits, bases = at(evaluation, "bits_per_byte"), at(evaluation, "bits_per_byte", "baselines")
    engine, prompt, milliseconds = fastest(benchmark)
    tiles = [
        ("Bits per byte, all text", number(at(bits, "all")), f"xz {number(at(bases, 'xz'))}"),
        ("Bits per byte, answers", number(at(bits, "assistant")), "the assistant's text alone"),
        ("Skills", percent(at(evaluation, "skills", "macro")), "on phrasings seen in training"),
        ("Skills, held back", percent(at(evaluation, "skills", "held_back", "macro")), "on phrasings never seen"),
        ("Answers that end", percent(at(evaluation, "stops_rate")), "by themselves"),
        ("Time per token", f"{number(milliseconds)} ms", f"{engine}, after {prompt} tokens" if engine else ""),
        ("Bytes per token", number(at(evaluation, "tokenizer", "bytes_per_token")), "of held-out text"),
    ]
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value, tag("small", note))) for name, value, note in tiles), class_="tiles")


def checks(evaluation: Metrics) -> Html:
    """What should hold of any run."""
    bits, engines = at(evaluation, "bits_per_byte") or {}, at(evaluation, "engines") or {}
    xz, stops = at(bits, "baselines", "xz"), at(evaluation, "stops_rate")
    exact = [at(engines, name, "bits_per_byte") for name in ("pytorch", "onnx", "onnx_hf") if name in engines]
    claims = []
    if at(bits, "all") is not None and xz is not None:
        claims.append((bits["all"] < xz, f"All text takes fewer bits per byte than with xz: {number(bits['all'])} against {number(xz)}"))
    if len(exact) > 1 and None not in exact:
        apart = max(exact) - min(exact)
        claims.append((apart <= AGREEMENT, f"Engines of full precision agree: at most {apart:.2g} bits per byte apart"))
    if stops is not None:
        claims.append((stops >= STOPS, f"Answers end by themselves: {percent(stops)}"))
    items = (
        tag("li", tag("span", "holds" if holds else "fails", class_="yes" if holds else "no"), " ", claim)
        for holds, claim in claims
    )
    return section("Checks", tag("ul", *items, class_="checks")) if claims else Html()


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
    return section("Training", tag("div", *charts, class_="charts")) if charts else Html()


def averaged(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most MAX_POINTS points: each the mean of those that follow one another, at the last one's place."""
    size = -(-len(points) // MAX_POINTS)
    groups = [points[start : start + size] for start in range(0, len(points), size)] if points else []
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


def compression(evaluation: Metrics) -> Html:
    """Bits per byte beside what knows nothing of chats, and by source."""
    bits = at(evaluation, "bits_per_byte") or {}
    names = {"uniform": "no model (8 bits)", "order0": "frequencies of bytes", "xz": "xz"}
    values = [(names[name], at(bits, "baselines", name), 4) for name in names]
    values += [("this model, all text", at(bits, "all"), 0), ("this model, answers", at(bits, "assistant"), 2)]
    sources = [(name, value, 0) for name, value in (at(bits, "by_source") or {}).items()]
    if not bits:
        return Html()
    note = "Lower is better. Control tokens are not counted; the baselines compress exactly the same bytes."
    return section(
        "Bits per byte of held-out text",
        tag("p", note, " ", at(bits, "note") or "", class_="note"),
        tag("div", bars("Beside methods that know nothing of chats", values), bars("By source", sources), class_="charts"),
    )


def bars(caption: str, values: Sequence[tuple[str, float | None, int]]) -> Html:
    """A table of one value a row, with a bar in its colour."""
    longest = max((value for _, value, _ in values if value is not None), default=1) or 1
    rows = (
        (name, number(value), bar(None if value is None else value / longest, color)) for name, value, color in values
    )
    return table(caption, ("", "bits per byte", ""), rows)


def skills(evaluation: Metrics) -> Html:
    """Accuracy by skill, on known and on held-back phrasings."""
    known, held_back = at(evaluation, "skills") or {}, at(evaluation, "skills", "held_back") or {}
    names = sorted({*known, *held_back} - {"macro", "held_back"})
    if not names:
        return Html()
    rows = [
        (name.replace("_", " "), *cells)
        for name in [*names, "macro"]
        for cells in [(percent(known.get(name)), bar(known.get(name)), percent(held_back.get(name)), bar(held_back.get(name), 1))]
    ]
    head = ("skill", "known", "", "held back", "")
    note = "Share of right answers, greedy, on numbers, names and orders that training did not see."
    return section("Skills", tag("p", note, class_="note"), table("By phrasing of the question", head, rows))


def chats(samples: Iterable[Metrics]) -> Html:
    """Free prompts and their answers, unedited."""
    shown = []
    for sample in samples:
        cut = None if sample["stopped"] else tag("span", " … cut off", class_="quiet")
        asked = tag("p", sample["prompt"], class_="asked", dir="auto")
        answer = tag("p", sample["answer"], cut or "", class_="answer" if cut is None else "answer cut", dir="auto")
        shown.append(tag("div", asked, answer, class_="chat"))
    note = "Greedy answers to prompts that were chosen beforehand, unedited."
    return section("Sample chats", tag("p", note, class_="note"), tag("div", *shown, class_="chats")) if shown else Html()


def latencies(benchmark: Metrics) -> Iterator[tuple[str, str, list[tuple[int, Metrics]]]]:
    """(engine, cache or recompute, its measurements by prompt length) of all that was measured."""
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
    engines = list(dict.fromkeys(engine for engine, _, _ in measured))
    charts = [
        latency_chart(title, key, measured, engines)
        for title, key in (("Time per token", "token_ms"), ("Time to the first token", "ttft_ms"))
    ]
    machine = "; ".join(f"{key.replace('_', ' ')} {value}" for key, value in (at(benchmark, "machine") or {}).items())
    note = "Median of repeated runs; thin lines reach to the 95th percentile. Dashed: without a cache, all is read again for each token."
    return section(
        "Speed",
        tag("p", note, class_="note"),
        tag("div", *charts, class_="charts"),
        tag("details", tag("summary", "As a table"), latency_table(measured)),
        engine_table(evaluation, benchmark),
        tag("p", f"Measured on: {machine}.", class_="note") if machine else "",
    )


def latency_chart(title: str, key: str, measured: Sequence[tuple[str, str, list[tuple[int, Metrics]]]], engines: list[str]) -> Html:
    """One line for each engine with and without its cache."""
    lines = [
        Line(
            engine if mode == "cache" else f"{engine}, no cache",
            [(prompt, values[key]["p50"]) for prompt, values in by_prompt],
            engines.index(engine) % 5,
            dashed=mode == "recompute",
            upper=[values[key]["p95"] for _, values in by_prompt],
        )
        for engine, mode, by_prompt in measured
    ]
    values = [value for line in lines for value in [*line.upper, *(y for _, y in line.points)]]
    prompts = [x for line in lines for x, _ in line.points]
    return line_chart(title, lines, category_axis("tokens of the prompt", prompts), log_axis("milliseconds", values))


def latency_table(measured: Sequence[tuple[str, str, list[tuple[int, Metrics]]]]) -> Html:
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
            number(at(values, "bits_per_byte")),
            percent(at(values, "skills_macro")),
            number(at(values, "size_mb")),
            number(at(benchmark, name, "peak_memory_mb")),
        )
        for name, values in (at(evaluation, "engines") or {}).items()
    ]
    head = ("engine", "bits per byte", "skills", "size, MB", "peak memory, MB")
    return table("Engines (skills on a sample of the questions)", head, rows)


def data(mix: Metrics) -> Html:
    """What the sources gave, and what was left out and why."""
    splits = list(at(mix, "conversations") or {})
    rows = [(name, number(at(mix, "conversations", name)), number(at(mix, "bytes", name))) for name in splits]
    dropped = [
        (f"{source}: {reason.replace('_', ' ')}", number(count))
        for source, reasons in (at(mix, "rejected") or {}).items()
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
            class_="charts",
        ),
    )


def tokenizer(evaluation: Metrics, benchmark: Metrics, *shown: Html) -> Html:
    """How the tokenizer cuts text, and how fast."""
    values = at(evaluation, "tokenizer") or {}
    rows = [("bytes per token", number(at(values, "bytes_per_token")))]
    rows += [(f"bytes per token of {name}", number(value)) for name, value in (at(values, "compared") or {}).items()]
    rows += [
        (f"tokens per message, {name}", number(value))
        for name, value in (at(values, "tokens_per_message") or {}).items()
    ]
    units = {"encode_mb_per_s": "encoding, MB/s", "decode_mb_per_s": "decoding, MB/s", "lookup_ns": "one lookup, ns", "open_ms": "opening, ms"}
    rows += [
        (unit, number(value)) for key, unit in units.items() if (value := at(benchmark, "tokenizer", key)) is not None
    ]
    return section("Tokenizer", *shown, table("On held-out text", ("", ""), rows))
