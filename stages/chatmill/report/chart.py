"""Charts of training and of latencies, as inline SVG: lines that are labelled at their ends.

They are drawn here, not by a library in the browser, since a page without scripts is safe wherever it is opened, prints
as it is seen, and is read by screen readers.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from chatmill.report.inputs import Curve, Points
from chatmill.report.markup import Html, number, tag
from chatmill.report.summary import Latency

WIDTH, HEIGHT = 440, 250  # in the drawing's units; small numbers, so that text stays legible on a phone
TOP, BOTTOM, LEFT = 26, 40, 40
LETTER, LINE = 7.5, 15  # width of a letter and height of a line of the labels
MAX_DOTS = 20  # points of a line, up to which each is marked

Place = Callable[[float, float], tuple[float, float]]  # where values stand in the drawing


@dataclass(frozen=True)
class Line:
    """One line of a chart: its points, and the upper end of the range that is drawn at each of them, if any."""

    name: str
    points: Sequence[tuple[float, float]]
    color: int = 0  # index in the page's palette
    dashed: bool = False
    upper: Sequence[float] = ()


@dataclass(frozen=True)
class Axis:
    name: str
    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False

    def fraction(self, value: float) -> float:
        """The position of a value between the limits, from 0 to 1."""
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return (value - low) / (high - low)


def linear_axis(name: str, values: Iterable[float]) -> Axis:
    """An axis from 0 to above the greatest value, with two to six round ticks."""
    high = max(values) or 1.0
    power = 10 ** math.floor(math.log10(high / 4))
    step = next(power * k for k in (1, 2, 5, 10) if high / (power * k) <= 5)
    ticks = [step * k for k in range(math.ceil(high / step - 1e-9) + 1)]
    return Axis(name, 0.0, ticks[-1], ticks)


def log_axis(name: str, values: Sequence[float]) -> Axis:
    """A logarithmic axis for values above 0, with ticks at 1, 2 and 5 times powers of ten, or at the powers alone."""
    low, high = min(values), max(values)
    powers = [10.0**power for power in range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 2)]
    ticks = [k * power for power in powers for k in (1, 2, 5)]
    ticks = [tick for tick in ticks if low / 2.5 < tick < high * 2.5]  # at most 2.5 apart: they enclose the values
    return Axis(
        name, ticks[0], ticks[-1], ticks if len(ticks) <= 7 else [one for one in ticks if one in powers], log=True
    )


def line_chart(title: str, lines: Sequence[Line], x: Axis, y: Axis) -> Html:
    """A figure with its title; a description in words is included for screen readers."""
    right = round(WIDTH - 10 - LETTER * max(len(line.name) for line in lines), 1)

    def place(across: float, up: float) -> tuple[float, float]:
        height = HEIGHT - BOTTOM - y.fraction(up) * (HEIGHT - BOTTOM - TOP)
        return round(LEFT + x.fraction(across) * (right - LEFT), 1), round(height, 1)

    words = [
        f"{line.name}: {y.name} from {number(line.points[0][1])} to {number(line.points[-1][1])}" for line in lines
    ]
    svg = tag(
        "svg",
        tag("title", title),
        tag("desc", "; ".join(words)),
        *_axes(x, y, right, place),
        *(_draw(line, place) for line in lines),
        *_labels([(line, place(*line.points[-1])[1]) for line in lines], right + 6),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
    )
    return tag("figure", tag("figcaption", title), svg)


def _axes(x: Axis, y: Axis, right: float, place: Place) -> Iterator[Html]:
    for tick in y.ticks:
        _, height = place(x.low, tick)
        yield tag("line", x1=LEFT, x2=right, y1=height, y2=height, class_="grid")
        yield tag("text", number(tick), x=LEFT - 6, y=height + 4, text_anchor="end")
    for tick in x.ticks:
        across, _ = place(tick, y.low)
        yield tag("text", number(tick), x=across, y=HEIGHT - BOTTOM + 16, text_anchor="middle")
    yield tag("text", y.name, x=0, y=LINE)
    yield tag("text", x.name, x=right, y=HEIGHT - 5, text_anchor="end")


def _draw(line: Line, place: Place) -> Html:
    points = [place(*point) for point in line.points]
    ranges = [
        tag("line", x1=across, x2=across, y1=height, y2=place(x, upper)[1], class_="range")
        for (x, _), (across, height), upper in zip(line.points, points, line.upper, strict=False)
    ]
    path = " ".join(f"{across},{height}" for across, height in points)
    drawn = tag("polyline", points=path, stroke_dasharray="5 4" if line.dashed else None)
    dots = [tag("circle", cx=across, cy=height, r=2.5) for across, height in points] if len(points) <= MAX_DOTS else []
    return tag("g", *ranges, drawn, *dots, class_=f"line color{line.color}")


def _labels(ends: Sequence[tuple[Line, float]], left: float) -> Iterator[Html]:
    """The name of each line beside its end; labels keep a distance from each other and from the ticks of the x axis."""
    y, lowest = -math.inf, HEIGHT - BOTTOM - LINE / 2 - LINE * (len(ends) - 1)  # with room for the labels that follow
    for line, end in sorted(ends, key=lambda one: one[1]):
        y = max(y + LINE, min(end, lowest))
        lowest += LINE
        yield tag("text", line.name, x=round(left, 1), y=round(y + 4, 1), class_=f"name color{line.color}")


# The curves of training.

MAX_POINTS = 60  # of a training curve; longer ones are averaged
LOSS_NOTE = "Mean over the tokens of the training batches; prompts are weighted by train_model.prompt_loss_weight."
RATE_NOTE = "At the end of the steps of each point; the other weights' rates are in proportion."
NORM_NOTE = "Of all weights together, in the last step of each point; nothing is clipped."
BITS_NOTE = (
    "Measured on trained text, the assistant's and that of documents: in the training batches, and in a fixed sample "
    "of the validation set, which is of all sources, without weights."
)
OF_SOURCE = "validation_bits_per_byte/"  # and its name, in the columns of a curve
MAX_SOURCES = 7  # as many as there are colours
SOURCES_NOTE = "In the same sample of the validation set, which may lack small sources."


def training_charts(curve: Curve) -> list[tuple[Html, str]]:
    """The charts of what was measured, each with a note. Of many sources those with the most at the end are shown."""
    sources = {name.removeprefix(OF_SOURCE): points for name, points in curve.items() if name.startswith(OF_SOURCE)}
    shown = dict(sorted(sources.items(), key=lambda one: -one[1][-1][1])[:MAX_SOURCES])
    others = f" Of {len(sources)} sources, the {MAX_SOURCES} with the most at the end." if shown != sources else ""
    bits = {"training": curve.get("bits_per_byte"), "validation": curve.get("validation_bits_per_byte")}
    charts = (
        ("Loss", "nats per token", {"training": curve.get("loss")}, LOSS_NOTE),
        ("Bits per byte", "bits per byte", bits, BITS_NOTE),
        ("Validation by source", "bits per byte", shown, SOURCES_NOTE + others),
        ("Gradient norm", "norm", {"training": curve.get("gradient_norm")}, NORM_NOTE),
        ("Learning rate", "rate", {"matrices": curve.get("learning_rate")}, RATE_NOTE),
    )
    return [
        (training_chart(title, unit, columns), note) for title, unit, columns, note in charts if any(columns.values())
    ]


def training_chart(title: str, unit: str, columns: Mapping[str, Points | None]) -> Html:
    """A chart with one line for each column that has values."""
    lines = [Line(name, downsample(points), color) for color, (name, points) in enumerate(columns.items()) if points]
    x = linear_axis("step", [step for line in lines for step, _ in line.points])
    y = linear_axis(unit, [value for line in lines for _, value in line.points])
    return line_chart(title, lines, x, y)


def downsample(points: Points) -> Points:
    """At most MAX_POINTS points, each the mean of consecutive points, at the position of the last of them."""
    size = -(-len(points) // MAX_POINTS)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


# The latencies of engines.

ENGINE_COLORS = (0, 1, 2, 3, 5, 6)  # of the page's palette; 4 is the grey of limits and baselines


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
    ticks = sorted({*prompts})
    x = Axis("tokens of the prompt", ticks[0], ticks[-1] if len(ticks) > 1 else ticks[0] * 2, ticks, log=True)
    return line_chart(title, lines, x, log_axis("milliseconds", times))
