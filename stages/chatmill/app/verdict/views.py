"""A verdict as lines of the terminal, as Markdown, as a page, and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chatmill.app.terminal.side_by_side import wrap_text
from chatmill.app.terminal.token_grid import DARK, StyledLine, aligned
from chatmill.app.verdict.differing_words import MIN_BITS, DocumentDifference, Word
from chatmill.app.verdict.verdict import Difference, Side, frontier, sentence
from chatmill.evaluation.intervals import Estimate
from chatmill.report import markup
from chatmill.report.markup import Html, tag
from chatmill.report.metrics import bits_range, in_bits, number, percent, percent_range

BETTER, WORSE = f"bg:#a6dfbb {DARK}", f"bg:#f8cfae {DARK}"
TITLE = "Verdict"
CAPTION = "The sides, on the same conversations; in parentheses 95 % intervals"
NAMES_OF_TEXT = {"all": "bits per byte of all text", "assistant": "bits per byte of the assistant's text"}
Row = tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """All that is shown of a comparison."""

    sides: Sequence[Side]
    differences: Sequence[Difference]
    baselines: dict[str, float | None]  # bits per byte of the same text
    documents: Sequence[DocumentDifference]  # of the first two sides

    @property
    def sentences(self) -> list[str]:
        """A verdict for each side but the first."""
        return [sentence(self.sides[0], one) for one in self.differences]

    @property
    def heads(self) -> list[str]:
        """Which runs each letter stands for."""
        return [f"{side.letter}: {side.names}" for side in self.sides]

    @property
    def note(self) -> str:
        """The sides that are worth choosing, and the baselines."""
        best = ", ".join(side.letter for side in frontier(self.sides))
        parts = [f"No other side is at least as good in bits per byte, latency and size as: {best}."]
        parts += [f"{name} needs {in_bits(bits)} bits per byte." for name, bits in self.baselines.items() if bits]
        return " ".join(parts)

    @property
    def documents_title(self) -> str:
        """What the list of documents is."""
        one, other = (side.letter for side in self.sides[:2])
        return f"Where {one} and {other} differ most: bits that {other} needs more, by word from {MIN_BITS:.0f} bit on"

    def rows(self) -> Iterator[Row]:
        """A row for each figure, with a column for each side."""
        sides = self.sides
        yield NAMES_OF_TEXT[sides[0].which], *(_bits(side.bits_per_byte) for side in sides)
        for name, shares in (
            ("right answers", [side.skills for side in sides]),
            ("hits@1", [side.hits_at_1 for side in sides]),
        ):
            if shares[0].n:
                yield f"{name}, of {shares[0].n}", *map(_share, shares)
        yield "ms a token", *(number(side.token_ms) for side in sides)
        yield "MB of weights", *(number(side.megabytes) for side in sides)


def _bits(found: Estimate) -> str:
    return in_bits(found.value) + (f" ({bits_range(found.interval)})" if found.interval else "")


def _share(found: Estimate) -> str:
    return percent(found.value) + (f" ({percent_range(found.interval)})" if found.interval else "")


def terminal_lines(verdict: Verdict, width: int) -> Iterator[StyledLine]:
    """The lines of the terminal, the verdict last."""
    yield from ([("", head)] for head in verdict.heads)
    yield []
    if verdict.documents:
        yield [("bold", verdict.documents_title)]
        for document in verdict.documents:
            yield [("bold", f"{document.place}: {document.bits:+.1f}")]
            yield from ([("", "  "), *_styled(part)] for part in document.parts)
        yield []
    yield from aligned(CAPTION, ("", *(side.letter for side in verdict.sides)), list(verdict.rows()))
    yield from ([("", line)] for line in wrap_text(verdict.note, width))
    yield []
    yield from ([("bold", line)] for text in verdict.sentences for line in wrap_text(text, width))


def _styled(words: Sequence[Word]) -> StyledLine:
    return [("" if abs(word.bits) < MIN_BITS else WORSE if word.bits > 0 else BETTER, _marked(word)) for word in words]


def _marked(word: Word) -> str:
    """A word on one line, with its bits where they are many."""
    text = " ".join(f"|{word.text}|".split("\n"))[1:-1]
    return text if abs(word.bits) < MIN_BITS else f"{text}({word.bits:+.1f})"


def markdown(verdict: Verdict) -> str:
    """The same as Markdown, the verdict first."""
    lines = [f"# {TITLE}", "", *(f"{text}\n" for text in verdict.sentences), *(f"- {head}" for head in verdict.heads)]
    letters = [side.letter for side in verdict.sides]
    table = [["", *letters], ["---"] * (1 + len(letters)), *verdict.rows()]
    lines += ["", f"{CAPTION}:", "", *(f"| {' | '.join(row)} |" for row in table), "", verdict.note]
    if verdict.documents:
        lines += ["", f"## {verdict.documents_title}"]
    for document in verdict.documents:
        lines += ["", f"**{document.place}: {document.bits:+.1f}**", ""]
        lines += [f"    {''.join(map(_marked, part))}" for part in document.parts]
    return "\n".join([*lines, ""])


def page(verdict: Verdict) -> Html:
    """The same as a page that loads nothing."""
    letters = [side.letter for side in verdict.sides]
    content: list[Html] = [tag("p", tag("strong", text)) for text in verdict.sentences]
    content.append(tag("ul", *(tag("li", head) for head in verdict.heads)))
    content += [markup.table(CAPTION, ["", *letters], verdict.rows()), tag("p", verdict.note, class_="note")]
    if verdict.documents:
        content.append(markup.section(verdict.documents_title, *map(_chat, verdict.documents)))
    return markup.document(TITLE, *content)


def _chat(document: DocumentDifference) -> Html:
    parts = (tag("p", *map(_word, part)) for part in document.parts)
    return tag("div", tag("strong", f"{document.place}: {document.bits:+.1f} bits"), *parts, class_="chat")


def _word(word: Word) -> Html:
    if abs(word.bits) < MIN_BITS:
        return markup.to_html(word.text)
    class_ = "t1" if word.bits > 0 else "t2"
    return tag("span", word.text, tag("small", f" {word.bits:+.1f}"), class_=class_)


def as_json(verdict: Verdict) -> dict[str, Any]:
    """The same as numbers that are not rounded."""
    return {
        "verdict": verdict.sentences,
        "text": verdict.sides[0].which,
        "sides": [_side_json(side) for side in verdict.sides],
        "differences": [_difference_json(one) for one in verdict.differences],
        "baselines": verdict.baselines,
        "frontier": [side.letter for side in frontier(verdict.sides)],
        "documents": [
            {"place": one.place, "bits": one.bits, "words": [[w._asdict() for w in part] for part in one.parts]}
            for one in verdict.documents
        ],
    }


def _side_json(side: Side) -> dict[str, Any]:
    figures = {"bits_per_byte": side.bits_per_byte, "skills": side.skills, "hits_at_1": side.hits_at_1}
    return {
        "letter": side.letter,
        "runs": [run.name for run in side.runs],
        **{name: found._asdict() for name, found in figures.items()},
        "token_ms": side.token_ms,
        "size_mb": side.megabytes,
    }


def _difference_json(found: Difference) -> dict[str, Any]:
    bits = found.bits
    result: dict[str, Any] = {"side": found.side.letter}
    result["bits"] = {"relative": bits.value, "interval": bits.interval, "is_clear": bits.is_clear}
    result["bits"] |= {"seed_deviation": bits.noise.deviation, "seed_runs": bits.noise.runs}
    for name, shares in (("skills", found.skills), ("hits_at_1", found.hits)):
        result[name] = None if shares is None else shares._asdict() | {"is_clear": shares.is_clear}
    return result
