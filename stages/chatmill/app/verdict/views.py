"""Shows a verdict as lines of the terminal, and as a page."""

from collections.abc import Callable, Iterator
from typing import Any

from chatmill.app.terminal.text import StyledLine, aligned, shorten, wrap_text
from chatmill.report import markup
from chatmill.report.markup import Html, bits_range, in_bits, number, percent, percent_range, tag

CAPTION = "The sides, on the same conversations; in parentheses 95 % intervals"
NAMES_OF_TEXT = {"all": "bits per byte of all text", "assistant": "bits per byte of the assistant's text"}
DOCUMENTS_TITLE = "Where A and B differ most: bits that B needs more"
MAX_TEXT = 200  # characters of a conversation


def heads(verdict: dict[str, Any]) -> list[str]:
    return [f"{side['letter']}: {', '.join(side['runs'])}" for side in verdict["sides"]]


def note(verdict: dict[str, Any]) -> str:
    return f"No other side is at least as good in bits per byte, latency and size as: {', '.join(verdict['frontier'])}."


def rows(verdict: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The table's head, and a row for each figure of the sides."""
    sides = verdict["sides"]
    yield "", *(side["letter"] for side in sides)
    yield NAMES_OF_TEXT[verdict["text"]], *(_estimate(side["bits_per_byte"], in_bits, bits_range) for side in sides)
    if questions := sides[0]["skills"]["n"]:
        shares = (_estimate(side["skills"], percent, percent_range) for side in sides)
        yield f"right answers, of {questions}", *shares
    yield "ms a token", *(number(side["token_ms"]) for side in sides)
    yield "MB of weights", *(number(side["size_mb"]) for side in sides)


def _estimate(found: dict[str, Any], show: Callable[[Any], str], show_range: Callable[[Any], str]) -> str:
    return show(found["value"]) + (f" ({show_range(found['interval'])})" if found["interval"] else "")


def terminal_lines(verdict: dict[str, Any], width: int) -> Iterator[StyledLine]:
    yield from ([("", head)] for head in heads(verdict))
    yield []
    if verdict["documents"]:
        yield [("bold", DOCUMENTS_TITLE)]
        for line in document_lines(verdict):
            yield from ([("", part)] for part in wrap_text(line, width))
        yield []
    head, *table = rows(verdict)
    yield from aligned(CAPTION, head, table)
    yield from ([("", line)] for line in wrap_text(note(verdict), width))
    yield []
    yield from ([("bold", line)] for text in verdict["verdict"] for line in wrap_text(text, width))


def document_lines(verdict: dict[str, Any]) -> Iterator[str]:
    """For each document on which two sides differ the bits that B needs more, and the beginning of its text."""
    for document in verdict["documents"]:
        yield f"{document['bits']:+.1f} {document['place']}: {shorten(document['text'], MAX_TEXT)}"


def page(verdict: dict[str, Any]) -> Html:
    """The same as a page that loads nothing."""
    head, *table = rows(verdict)
    content: list[Html] = [tag("p", tag("strong", text)) for text in verdict["verdict"]]
    content.append(tag("ul", *(tag("li", text) for text in heads(verdict))))
    content += [markup.table(CAPTION, head, table), tag("p", note(verdict), class_="note")]
    if verdict["documents"]:
        lines = (tag("li", line) for line in document_lines(verdict))
        content.append(markup.section(DOCUMENTS_TITLE, tag("ul", *lines)))
    return markup.document("Verdict", *content)
