"""The curves of training: read from a table, and drawn as charts."""

import csv
import math
from collections.abc import Mapping
from pathlib import Path

from chatmill.pipeline.manifest import read_text
from chatmill.report.chart import Line, line_chart, linear_axis
from chatmill.report.markup import Html

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

Points = list[tuple[float, float]]
Curve = dict[str, Points]  # (step, value) of each column


def read_curve(file: Path, *, strict: bool = True) -> Curve:
    """The columns of a tab-separated table, by step; cells without a finite number are left out.

    Raises ValueError for a row without numbers, or leaves it out, as a curve that grows may end in half a row.
    """
    curve: Curve = {}
    text = read_text(file) if strict else file.read_text(encoding="utf-8", errors="replace")
    for place, row in enumerate(csv.DictReader(text.splitlines(), delimiter="\t"), start=2):
        try:
            values = {name: float(cell) for name, cell in row.items() if cell}
            step = values.pop("step")
        except (ValueError, KeyError, TypeError) as error:
            if not strict:
                continue
            raise ValueError(f"{file}:{place}: expected numbers and a step: {error}") from error
        for name, value in values.items():
            if math.isfinite(value):
                curve.setdefault(name, []).append((step, value))
    return curve


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
