"""Builds the HTML of the report, and formats numbers for it."""

import html
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

# Reads values from nested metrics, and formats them for the page, in which what was not measured is None or undefined.

Metrics = dict[str, Any]
STYLE = Path(__file__).with_name("style.css").read_text(encoding="utf-8")


def get_nested(metrics: Any, *keys: str, default: Any = None) -> Any:
    """The value under a path of keys, or `default` where a run did not measure it."""
    for key in keys:
        metrics = metrics.get(key) if isinstance(metrics, dict) else None
    return default if metrics is None else metrics


def number(value: float | None, decimals: int | None = None) -> str:
    """A number as text: with `decimals`, or else three digits, or commas if it is an integer; a dash for none."""
    if not isinstance(value, Real):
        return "–"
    if decimals is not None:
        return f"{value:.{decimals}f}"
    if math.isfinite(value) and (abs(value) >= 100 or value == int(value)):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percent(share: float | None) -> str:
    """A share as a percentage; a dash where there is none."""
    return f"{100 * share:.1f} %" if isinstance(share, Real) else "–"


def percent_range(limits: Sequence[float] | None) -> str:
    """The interval of a share as percentages; a dash where there is none."""
    return f"{100 * limits[0]:.1f} to {100 * limits[1]:.1f} %" if limits else "–"


def bits_range(limits: Sequence[float] | None, decimals: int = 3) -> str:
    """The interval of bits per byte as text; a dash where there is none."""
    return " to ".join(number(limit, decimals) for limit in limits) if limits else "–"


def in_bits(value: float | None) -> str:
    return number(value, decimals=3)


def dotted(values: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each value as text, with its keys joined by dots."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from dotted(value, f"{name}.")
        else:
            yield valid_text(name), valid_text(value if isinstance(value, str) else json.dumps(value, default=str))


def valid_text(value: str) -> str:
    """The text with lone surrogates replaced, so that it can be written as UTF-8."""
    return value.encode("utf-8", "replace").decode()


# Builds HTML from values; all text in elements and attributes is escaped.

_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_VOID = frozenset({"meta", "br", "input"})


class Html(str):
    """A string of markup, which is not escaped again."""

    def __html__(self) -> "Html":
        return self


def to_html(content: object) -> Html:
    """`content` as markup; invisible characters, and those that change the text direction, are shown as their codes."""
    if hasattr(content, "__html__"):  # as that of Jinja, too
        return Html(content)
    return Html(html.escape(_UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", valid_text(str(content)))))


def tag(name: str, /, *content: object, **attributes: object) -> Html:
    """An element; `class_` becomes class, `stroke_width` stroke-width, and attributes that are None are left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{to_html(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{written}>" if name in _VOID else f"<{name}{written}>{join(content)}</{name}>")


def join(content: Iterable[object]) -> Html:
    return Html("".join(map(to_html, content)))


def table(caption: str, head: Iterable[object], rows: Iterable[Iterable[object]]) -> Html:
    """A table in which the first cell of each row is its header; a name of a column may be empty."""
    body = (tag("tr", tag("th", name, scope="row"), *(tag("td", cell) for cell in cells)) for name, *cells in rows)
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption),
            tag("thead", tag("tr", *(tag("th", cell, scope="col") if cell else tag("td") for cell in head))),
            tag("tbody", *body),
        ),
        class_="scroll",
        tabindex=0,
        role="group",
        aria_label=caption,
    )


def section(title: str, *content: object) -> Html:
    return tag("section", tag("h2", title), *content)


def anchor(title: str) -> str:
    """The name by which a link finds a folded section: browsers open it where the name lies inside."""
    return title.lower().replace(" ", "-")


def document(title: str, *content: Html) -> Html:
    """A complete page, which loads no resources and runs no scripts."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Html(STYLE)),
    )
    main = tag("main", tag("h1", title), *content)
    return Html(f"<!doctype html>\n{tag('html', head, tag('body', main), lang='en')}\n")
