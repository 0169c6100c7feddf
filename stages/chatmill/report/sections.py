"""The sections of the report, each made from the metrics of a file; values that were not measured are left out."""

from collections.abc import Mapping, Sequence

from chatmill.report.chart import Line, bar, line_chart, linear_axis
from chatmill.report.markup import Html, Metrics, bits_range, folded, get_nested, in_bits, number, percent, table, tag

MAX_POINTS = 200  # of a training curve; longer ones are averaged
ENGINE_TOLERANCE = 1e-3  # bits per byte by which engines of full precision may differ
RIVALS = {"xz": "xz", "ngram": "counted n-grams"}  # the baselines that a model should surpass
BASELINES = {"uniform": "no model (8 bits)", "order0": "frequencies of bytes"} | RIVALS
TOKEN_SUBSETS = {"kept": "trained on", "held_out": "held out", "all": "all, trained on"}  # tokens of the soft tokenizer
EMBEDDING_TITLES = {
    "table": "the model's own rows",
    "plugged_in": "rows made from bytes",
    "held_out": "own rows, but rows made from bytes for held-out tokens",
    "held_out_mean": "own rows, but their mean for held-out tokens",
    "tuned": "rows made from bytes, after fine-tuning",
}
MIN_STOPS_RATE = 0.99  # share of answers that should end by themselves
LOSS_NOTE = (
    "Mean over the tokens of the training batches; prompts are weighted by train_model.prompt_loss_weight. The bold "
    "line is the mean of five points; the points themselves are faint."
)
RATE_NOTE = "At the end of the steps of each point; the other weights' rates are in proportion."
NORM_NOTE = (
    "Of all weights together, in the last step of each point; nothing is clipped. The bold line is the mean of five "
    "points."
)
BITS_NOTE = (
    "Measured on trained text, the assistant's and that of documents: in the training batches, and in a fixed sample "
    "of the validation set, which is of all sources, without weights."
)
OF_SOURCE = "validation_bits_per_byte/"  # and its name, in the columns of a curve
MAX_SOURCES = 7  # as many as there are colours
SOURCES_NOTE = "In the same sample of the validation set, which may lack small sources."
TIME_NOTE = "How long training took, and its tokens a second, stand in the log of dvc repro, not here."

Points = list[tuple[float, float]]
Bar = tuple[str, float | None, int, *tuple[str, ...]]  # the name, value and colour of a bar, and further cells
Curve = dict[str, Points]  # (step, value) of each column


def checks(evaluation: Metrics) -> Html:
    """The checks that each run should pass, to unfold; open if one of them fails."""
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
    items = [
        tag("li", tag("span", (word := "holds" if holds else "fails"), class_=word), f" {claim}")
        for holds, claim in found
    ]
    all_hold = all(holds for holds, _ in found)
    title = f"{sum(holds for holds, _ in found)} of {len(found)} checks hold"
    summary = tag("summary", title, class_="holds" if all_hold else "fails")
    return tag("details", summary, tag("ul", *items), open=None if all_hold else "") if items else Html()


def training(curve: Curve) -> Html:
    charts = [
        training_chart("Loss", "nats per token", {"training": curve.get("loss")}, LOSS_NOTE),
        training_chart(
            "Bits per byte",
            "bits per byte",
            {"training": curve.get("bits_per_byte"), "validation": curve.get("validation_bits_per_byte")},
            BITS_NOTE,
        ),
        source_chart(curve),
        training_chart("Gradient norm", "norm", {"training": curve.get("gradient_norm")}, NORM_NOTE),
        training_chart("Learning rate", "rate", {"matrices": curve.get("learning_rate")}, RATE_NOTE),
    ]
    if not any(charts):
        return Html()
    about = "loss, bits per byte, gradient norm and learning rate by step"
    return folded("Training", about, tag("p", TIME_NOTE, class_="note"), tag("div", *charts, class_="columns"))


def source_chart(curve: Curve) -> Html:
    """Bits per byte on validation by source; of many, those with the most at the end."""
    sources = {name.removeprefix(OF_SOURCE): points for name, points in curve.items() if name.startswith(OF_SOURCE)}
    shown = dict(sorted(sources.items(), key=lambda one: -one[1][-1][1])[:MAX_SOURCES])
    others = f" Of {len(sources)} sources, the {MAX_SOURCES} with the most at the end." if shown != sources else ""
    return training_chart("Validation by source", "bits per byte", shown, SOURCES_NOTE + others)


def training_chart(title: str, unit: str, columns: Mapping[str, Points | None], note: str) -> Html:
    """A chart with one line for each column that has values, and a note below it."""
    lines = [
        Line(name, downsample(points), color, smooth=name == "training")
        for color, (name, points) in enumerate(columns.items())
        if points
    ]
    x = linear_axis("step", [step for line in lines for step, _ in line.points])
    y = linear_axis(unit, [value for line in lines for _, value in line.points])
    return tag("div", line_chart(title, lines, x, y), tag("p", note, class_="note")) if lines else Html()


def downsample(points: Points) -> Points:
    """At most MAX_POINTS points, each the mean of consecutive points, at the position of the last of them."""
    size = -(-len(points) // MAX_POINTS)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


def compression(evaluation: Metrics) -> Html:
    bits = get_nested(evaluation, "bits_per_byte")
    if bits is None:
        return Html()
    bases = get_nested(bits, "baselines", default={})
    values: list[Bar] = [(name, bases.get(key), 4) for key, name in BASELINES.items()]
    values += [
        (f"this model, all text{bits_interval(evaluation, 'all')}", get_nested(bits, "all"), 0),
        (f"this model, answers{bits_interval(evaluation, 'assistant')}", get_nested(bits, "assistant"), 2),
    ]
    ngrams = get_nested(bits, "ngram_by_source", default={})
    sources: list[Bar] = [
        (name, value, 0, in_bits(ngrams.get(name))) for name, value in get_nested(bits, "by_source", default={}).items()
    ]
    note = f"Lower is better; control tokens are not counted. Baselines compress the same bytes. {bits.get('note', '')}"
    if counted := bits.get("ngram_train_tokens"):
        note += f" N-grams of up to {bits['ngram_order']} tokens were counted in {number(counted)} tokens of training."
    tables = bars("Compared with baselines", values), bars("By source", sources, "counted n-grams")
    columns = tag("div", *tables, class_="columns")
    return folded("Bits per byte", "beside baselines, and by source", tag("p", note, class_="note"), columns)


def since_initial(evaluation: Metrics) -> Html:
    """What was learnt and forgotten since the model that training started from."""
    values = get_nested(evaluation, "initial")
    if values is None:
        return Html()
    before, after = values["before"], values["after"]
    rows = [("a general text, bits per byte", *(in_bits(one["general"]) for one in (before, after)))]
    rows += [("all answers, bits per byte", *(in_bits(one["answers"]) for one in (before, after)))]
    rows += [
        (f"answers of {name}, bits per byte", in_bits(bits), in_bits(after["answers_by_source"][name]))
        for name, bits in before["answers_by_source"].items()
    ]
    rows += [("skills", *(percent(one["skills_macro"]) for one in (before, after)))]
    note = "The initial model reads each text with its own tokenizer and chat template, and can call no tools of ours."
    return folded(
        "Since the initial model",
        "what was learnt and forgotten since then",
        tag("p", note, class_="note"),
        table("Learnt and forgotten", ("", "initial model", "this model"), rows),
    )


def bits_interval(evaluation: Metrics, *path: str) -> str:
    limits = get_nested(evaluation, "intervals", "bits_per_byte", *path)
    return f" ({bits_range(limits)})" if limits else ""


def bars(caption: str, values: Sequence[Bar], *head: str) -> Html:
    """A table with one value and its coloured bar per row, and further cells under `head`."""
    longest = max((value for _, value, *_ in values if value is not None), default=1) or 1
    rows = (
        (name, in_bits(value), bar(None if value is None else value / longest, color), *more)
        for name, value, color, *more in values
    )
    return table(caption, ("", "bits per byte", "", *head), rows)


def soft_tokenizer(measured: Metrics) -> Html:
    """Quality of the embeddings that are made from bytes, and the model's bits per byte with them."""
    subsets = [(title, measured[key]) for key, title in TOKEN_SUBSETS.items() if key in measured]
    texts = {"": get_nested(measured, "bits_per_byte", default={}), **get_nested(measured, "noisy", default={})}
    texts["another tokenizer"] = get_nested(measured, "other_tokenizer", default={})
    bits = [
        (f"{text.replace('_', ' ')}: {EMBEDDING_TITLES.get(name, name)}".removeprefix(": "), values)
        for text, tables in texts.items()
        for name, values in tables.items()
    ]
    if not subsets:
        return Html()
    rows = [
        ("nearest row by cosine", *(percent(get_nested(values, "nearest", "cosine")) for _, values in subsets)),
        (
            "variance explained",
            *(number(get_nested(values, "variance_explained", "plain"), 3) for _, values in subsets),
        ),
        ("mean cosine", *(number(get_nested(values, "mean_cosine"), 3) for _, values in subsets)),
    ]
    note = "A small network computes the embedding of a token from its bytes; the model then uses these rows."
    warning = " It has collapsed: all tokens have nearly the same row." if measured.get("collapsed") else ""
    tables = (
        table("Rows made from bytes", ("tokens", *(title for title, _ in subsets)), rows),
        table(
            "Bits per byte with these rows",
            ("", "all text", "answers"),
            [
                (name, in_bits(get_nested(values, "all")), in_bits(get_nested(values, "assistant")))
                for name, values in bits
            ],
        ),
    )
    about = "embeddings that are made from the bytes of tokens"
    return folded(
        "Soft tokenizer", about, tag("p", note + warning, class_="note"), tag("div", *tables, class_="columns")
    )


def tokenizer(evaluation: Metrics, benchmark: Metrics, *shown: Html) -> Html:
    values = get_nested(evaluation, "tokenizer", default={})
    sizes = [("bytes per token", number(get_nested(values, "bytes_per_token")))]
    sizes += [
        (f"bytes per token of {name}", number(value))
        for name, value in get_nested(values, "compared", default={}).items()
    ]
    sizes += [
        (f"tokens per message, {name}", number(value))
        for name, value in get_nested(values, "tokens_per_message", default={}).items()
    ]
    units = {
        "encode_mb_per_s": "encoding, MB/s",
        "decode_mb_per_s": "decoding, MB/s",
        "lookup_ns": "lookup of one token, ns",
        "open_ms": "opening tokenizer.bin, ms",
    }
    speeds = [
        (units[key], number(value))
        for key, value in get_nested(benchmark, "tokenizer", default={}).items()
        if key in units
    ]
    tables = table("On held-out text", ("", ""), sizes), table("Speed", ("", ""), speeds)
    return folded(
        "Tokenizer",
        "tokens and loss mask of an example, compression and speed",
        *shown,
        tag("div", *tables, class_="columns"),
    )
