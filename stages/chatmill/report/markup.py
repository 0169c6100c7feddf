"""Reads values from nested metrics, and formats them for the page."""

import html
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

Metrics = dict[str, Any]


def get_nested(metrics: Any, *keys: str, default: Any = None) -> Any:
    """The value under a path of keys, or `default` where a run did not measure it."""
    for key in keys:
        metrics = metrics.get(key) if isinstance(metrics, dict) else None
    return default if metrics is None else metrics


def number(value: float | None, decimals: int | None = None) -> str:
    """A number as text: with `decimals`, or else three digits, or commas if it is an integer; a dash for None."""
    if value is None:
        return "–"
    if decimals is not None:
        return f"{value:.{decimals}f}"
    if math.isfinite(value) and (abs(value) >= 100 or value == int(value)):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percent(share: float | None) -> str:
    """A share as a percentage; a dash for None."""
    return "–" if share is None else f"{100 * share:.1f} %"


def percent_range(limits: Sequence[float] | None) -> str:
    """The interval of a share as percentages; a dash for None."""
    return "–" if limits is None else f"{100 * limits[0]:.1f} to {100 * limits[1]:.1f} %"


def bits_range(limits: Sequence[float] | None, decimals: int = 3) -> str:
    """The interval of bits per byte as text; a dash for None."""
    return "–" if limits is None else " to ".join(number(limit, decimals) for limit in limits)


def in_bits(value: float | None) -> str:
    """Bits per byte as text."""
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


# The style sheet of the page: one column, light or dark as the reader's system is.

STYLE = """
:root { color-scheme: light dark;
  --page: #fdfdfc; --ink: #1c1f23; --quiet: #5b626b; --rule: #dcdfe3; --wash: #f0f1f3;
  --c0: #1f5fa8; --c1: #b3470f; --c2: #1d7a4c; --c3: #8a3d8f; --c4: #6b7280; --c5: #7a6000; --c6: #a3235c;
  --t0: #d9e8f8; --t1: #fbe3d2; --t2: #d5efdf; --t3: #f0dcf2; --t4: #f3ecc4; }
@media (prefers-color-scheme: dark) { :root {
  --page: #14171a; --ink: #e4e7ea; --quiet: #a3acb5; --rule: #333a41; --wash: #20262b;
  --c0: #7db3ee; --c1: #f0935c; --c2: #67c795; --c3: #d493d8; --c4: #9aa3ad; --c5: #d8bf52; --c6: #f28fb1;
  --t0: #1d3a5a; --t1: #55301b; --t2: #1c4530; --t3: #472649; --t4: #463f17; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 60rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; margin: 0; line-height: 1.2; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .5rem; padding-top: .6rem; border-top: 1px solid var(--rule); }
p { margin: .3rem 0 .8rem; max-width: 46rem; }
.note, .cut, caption, summary { color: var(--quiet); font-size: .87rem; }
code, .token { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .87em; }
ul { margin: .4rem 0; padding-left: 1.1rem; }
.holds { color: var(--c2); }
.fails { color: var(--c1); font-weight: 600; }

.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .6rem 1.2rem; }
.tiles div { border-top: 2px solid var(--ink); padding-top: .25rem; }
.tiles dt, .tiles small { font-size: .8rem; color: var(--quiet); }
.tiles dd { margin: 0; font-size: 1.5rem; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tiles small { display: block; line-height: 1.35; }

.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 0 2rem; }
.columns > * { min-width: 0; }
figure { margin: .5rem 0; }
figcaption { font-size: .87rem; font-weight: 600; margin-bottom: .3rem; }
figure svg { width: 100%; height: auto; display: block; font: 12px system-ui, sans-serif; }
svg text { fill: var(--quiet); }
svg .name { font-weight: 600; fill: var(--c); }
svg .grid { stroke: var(--rule); }
svg .range { stroke: var(--c); opacity: .55; }
svg polyline { fill: none; stroke: var(--c); stroke-width: 1.8; stroke-linejoin: round; }
svg circle, svg rect { fill: var(--c); }
svg .faint { opacity: .35; stroke-width: 1; }
svg .interval { stroke: var(--ink); stroke-width: 1.5; }
svg .at { opacity: 0; }
svg .at:hover { opacity: 1; }
svg .at rect { fill: transparent; }
svg .at line { stroke: var(--quiet); }
svg .at text { fill: var(--ink); stroke: var(--page); stroke-width: 4; paint-order: stroke; font-weight: 600; }
svg .at [class] { fill: var(--c); }
.scaled { position: relative; }
.scale { position: absolute; right: 0; top: .1rem; border: 0; padding: 0; margin: 0; font-size: .8rem;
  color: var(--quiet); }
.scale legend { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.scale label { margin-left: .6rem; cursor: pointer; }
.scaled:has([value="linear"]:checked) .logarithmic { display: none; }
.scaled:has([value="logarithmic"]:checked) .linear { display: none; }
.color0 { --c: var(--c0); }
.color1 { --c: var(--c1); }
.color2 { --c: var(--c2); }
.color3 { --c: var(--c3); }
.color4 { --c: var(--c4); }
.color5 { --c: var(--c5); }
.color6 { --c: var(--c6); }

.scroll { overflow-x: auto; margin: .6rem 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .2rem; }
th, td { text-align: right; padding: .16rem 0 .16rem .9rem; white-space: nowrap; font-weight: 400; }
th:first-child { text-align: left; padding-left: 0; white-space: normal; }
thead :is(th, td) { color: var(--quiet); font-size: .8rem; border-bottom: 1px solid var(--rule);
  vertical-align: bottom; }
tbody tr + tr > * { border-top: 1px solid var(--rule); }
.total th:first-child, .ranges th:first-child { white-space: nowrap; }
.total tbody tr:last-child > * { font-weight: 600; border-top-color: var(--ink); }
:is(td, th):has(.words) { text-align: left; white-space: normal; min-width: 9rem; }
td:has(.bar) { width: 36%; min-width: 4rem; }
.bar { display: block; }

.chats { columns: 22rem; column-gap: 2rem; margin-top: .8rem; }
.chat { break-inside: avoid; padding-bottom: .9rem; }
.chat p { margin: 0; }
.question { color: var(--quiet); font-size: .9rem; }
.answer { white-space: pre-wrap; padding-inline-start: .7rem; border-inline-start: 2px solid var(--c0); }

.tokens { display: flex; flex-wrap: wrap; gap: .25rem; margin: .6rem 0; padding: 0; list-style: none; }
.token { display: inline-block; padding: .15rem .35rem; border-radius: 3px; text-align: center;
  white-space: pre-wrap; margin-right: .1rem; }
.break { flex-basis: 100%; }
.token small { display: block; font-size: .75rem; line-height: 1.3; }
.t0 { background: var(--t0); }
.t1 { background: var(--t1); }
.t2 { background: var(--t2); }
.t3 { background: var(--t3); }
.t4 { background: var(--t4); }
.trained { background: var(--t2); border-bottom: 2px solid var(--c2); }
.prompt { background: var(--wash); border-bottom: 2px solid transparent; }
.ignored { color: var(--quiet); border-bottom: 2px dotted var(--c4); }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .6rem 0 1rem;
  font-size: .9rem; }
.facts dt { color: var(--quiet); }
.facts dd { margin: 0; min-width: 0; }
details { margin: .4rem 0 1rem; }
summary { cursor: pointer; }
@page { margin: 1.5cm; }
@media print { html { font-size: 80%; } body { max-width: none; padding: 0; font-size: 9pt; }
  h2, .note, .question { break-after: avoid; }
  p, figure, tr, .tiles div, .chat, .tokens { break-inside: avoid; }
  .scale, .scaled > details, details:not([open]) { display: none; }
  .scroll { overflow: visible; }
  * { print-color-adjust: exact; } }
:focus-visible { outline: 2px solid var(--c0); outline-offset: 2px; }
"""


# Builds HTML from values; all text in elements and attributes is escaped.

_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_VOID = frozenset({"meta", "br", "input"})


class Html(str):
    """A string of markup, which is not escaped again."""


def to_html(content: object) -> Html:
    """`content` as markup; invisible characters, and those that change the text direction, are shown as their codes."""
    if isinstance(content, Html):
        return content
    text = str(content).encode("utf-8", "replace").decode()
    return Html(html.escape(_UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)))


def tag(name: str, /, *content: object, **attributes: object) -> Html:
    """An element; `class_` becomes class, `stroke_width` stroke-width, and attributes that are None are left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{to_html(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{written}>" if name in _VOID else f"<{name}{written}>{join(content)}</{name}>")


def join(content: Iterable[object]) -> Html:
    """The concatenated contents as markup."""
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


def words(text: str) -> Html:
    """The content of a cell that is no number: it is aligned to the left, and takes several lines where it is long."""
    return tag("span", text, class_="words")


def section(title: str, *content: object) -> Html:
    """A section of the page with its heading."""
    return tag("section", tag("h2", title), *content)


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
