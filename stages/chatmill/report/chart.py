"""Charts as inline SVG: lines that carry their own names, and bars that stand in the cells of a table."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from chatmill.report.markup import Html, tag
from chatmill.report.metrics import number

WIDTH, HEIGHT = 440, 250  # units of the drawing; few, so that its type stays legible on a phone
TOP, BOTTOM, LEFT = 26, 40, 40
LETTER, LINE = 7, 14  # width and height of a label's letters


@dataclass(frozen=True)
class Line:
    """One line of a chart: its points, and the upper end of the range at each where that is drawn."""

    name: str
    points: Sequence[tuple[float, float]]
    color: int = 0  # of the page's palette
    dashed: bool = False
    upper: Sequence[float] = ()


@dataclass(frozen=True)
class Axis:
    """What one side of a chart shows: its name, its two ends, and the values that are marked."""

    name: str
    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False

    def fraction(self, value: float) -> float:
        """Where a value lies between the ends, from 0 to 1."""
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return (at - low) / (high - low)


def linear_axis(name: str, values: Iterable[float]) -> Axis:
    """From 0 to beyond the greatest value, with three to six round marks."""
    high = max(values, default=0.0)
    if high <= 0:
        high = 1.0
    power = 10 ** math.floor(math.log10(high / 4))
    step = next(power * k for k in (1, 2, 5, 10) if high / (power * k) <= 5)
    marks = [step * k for k in range(math.ceil(high / step - 1e-9) + 1)]
    return Axis(name, 0.0, marks[-1], marks)


def log_axis(name: str, values: Iterable[float]) -> Axis:
    """Around all values, which are above 0, with marks at 1, 2 and 5 of each power of ten, or at the powers alone."""
    values = list(values) or [1.0]
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 2)
    marks = [k * 10.0**power for power in powers for k in (1, 2, 5)]
    first = max(mark for mark in marks if mark <= low * (1 + 1e-9))
    last = min(mark for mark in marks if mark > high)
    marks = [mark for mark in marks if first <= mark <= last]
    shown = marks if len(marks) <= 7 else [mark for mark in marks if round(math.log10(mark), 6) % 1 == 0]
    return Axis(name, first, last, shown, log=True)


def category_axis(name: str, values: Iterable[float]) -> Axis:
    """Marks at the values themselves, all above 0, by their ratio."""
    marks = sorted(set(values)) or [1.0]
    return Axis(name, marks[0], marks[-1] if len(marks) > 1 else marks[0] * 2, marks, log=True)


def line_chart(title: str, lines: Sequence[Line], x: Axis, y: Axis) -> Html:
    """A figure under its title; the drawing is described in words for those who do not see it."""
    lines = [line for line in lines if line.points]
    right = WIDTH - 10 - LETTER * max((len(line.name) for line in lines), default=0)
    place = _Projection(x, y, right)
    svg = tag(
        "svg",
        tag("title", title),
        tag("desc", "; ".join(_in_words(line, y) for line in lines)),
        *_axes(place),
        *(_drawn(line, place) for line in lines),
        *_names([(line, place(*line.points[-1])[1]) for line in lines], right + 6),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
    )
    return tag("figure", tag("figcaption", title), svg)


@dataclass(frozen=True)
class _Projection:
    """Where a point stands in the drawing."""

    x: Axis
    y: Axis
    right: float

    def __call__(self, x: float, y: float) -> tuple[float, float]:
        across = LEFT + self.x.fraction(x) * (self.right - LEFT)
        return round(across, 1), round(HEIGHT - BOTTOM - self.y.fraction(y) * (HEIGHT - BOTTOM - TOP), 1)


def _in_words(line: Line, y: Axis) -> str:
    return f"{line.name}: {y.name} from {number(line.points[0][1])} to {number(line.points[-1][1])}"


def _axes(place: _Projection) -> Iterator[Html]:
    x, y, right = place.x, place.y, round(place.right, 1)
    for mark in y.ticks:
        _, height = place(x.low, mark)
        yield tag("line", x1=LEFT, x2=right, y1=height, y2=height, class_="grid")
        yield tag("text", number(mark), x=LEFT - 6, y=height + 4, text_anchor="end")
    for mark in x.ticks:
        across, _ = place(mark, y.low)
        yield tag("text", number(mark), x=across, y=HEIGHT - BOTTOM + 16, text_anchor="middle")
    yield tag("text", y.name, x=0, y=LINE)
    yield tag("text", x.name, x=right, y=HEIGHT - 5, text_anchor="end")


def _drawn(line: Line, place: _Projection) -> Html:
    points = [place(*point) for point in line.points]
    ranges = [
        tag("line", x1=across, x2=across, y1=height, y2=place(x, upper)[1], class_="range")
        for (x, _), (across, height), upper in zip(line.points, points, line.upper, strict=False)
    ]
    path = " ".join(f"{across},{height}" for across, height in points)
    dots = [tag("circle", cx=across, cy=height, r=2.5) for across, height in points] if len(points) < 20 else []
    drawn = tag("polyline", points=path, stroke_dasharray="5 4" if line.dashed else None)
    return tag("g", *ranges, drawn, *dots, class_=f"line color{line.color}")


def _names(ends: Sequence[tuple[Line, float]], left: float) -> Iterator[Html]:
    """The name of each line beside its end, moved apart where they would overlap."""
    ends = sorted(ends, key=lambda end: end[1])
    heights = [height for _, height in ends]
    for index in range(1, len(heights)):
        heights[index] = max(heights[index], heights[index - 1] + LINE)
    lowest: float = HEIGHT - BOTTOM
    for index in reversed(range(len(heights))):
        heights[index] = min(heights[index], lowest)
        lowest = heights[index] - LINE
    for (line, _), height in zip(ends, heights, strict=True):
        yield tag("text", line.name, x=round(left, 1), y=round(height + 4, 1), class_=f"name color{line.color}")


def bar(share: float | None, color: int = 0) -> Html:
    """A bar as long as a share of its cell, from 0 to 1; its value stands beside it as text."""
    if share is None:
        return Html()
    length = f"{100 * min(max(share, 0), 1):.1f}%"
    rect = tag("rect", width=length, height=10, rx=1)
    return tag("svg", rect, class_=f"bar color{color}", width="100%", height=10, aria_hidden="true")
