"""Shows a verdict, and the conversations on which two sides differ most, word by word.

A token's nats are divided evenly among its bytes, and a word's are the sum over its bytes: so sides with different
tokenizers can be compared.

Shapes: L bytes of the scored text of a document.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple

import numpy as np

from chatmill.app.measurement import ScoredDocument, corpus_nats, encode_documents
from chatmill.app.terminal.text import StyledLine, aligned, wrap_text
from chatmill.app.terminal.tokens import DARK
from chatmill.app.verdict.verdict import (
    LIMIT,
    Difference,
    Run,
    Side,
    baseline_bits,
    differences,
    frontier,
    measure_run,
    read_compared,
    scored_the_same,
    sentence,
    which_text,
)
from chatmill.evaluation.intervals import Estimate
from chatmill.report import markup
from chatmill.report.markup import Html, bits_range, in_bits, number, percent, percent_range, tag

# The conversations on which two sides differ most, word by word.

NUM_DOCUMENTS = 20
MIN_BITS = 1.0  # of a document or word that is told
_WORD = re.compile(rb"\s*\S+|\s+")


class Word(NamedTuple):
    """A word with the white space before it, and how many bits more it takes under the second side."""

    text: str
    bits: float


class DocumentDifference(NamedTuple):
    """A document in parts, between control tokens, and how many bits more it takes under the second side."""

    place: str
    bits: float
    parts: list[list[Word]]


class ScoredText(NamedTuple):
    """The scored text of a document, with the nats of each byte."""

    text: bytes
    nats: np.ndarray  # (L,)
    breaks: list[int]  # where control tokens stand between bytes


def differing_documents(
    first: Sequence[Run], second: Sequence[Run], documents: Sequence[ScoredDocument], which: str
) -> list[DocumentDifference]:
    """The NUM_DOCUMENTS on which the sides differ most, by MIN_BITS or more; more than 0 are easier for the first."""
    of_first, of_second = (np.mean([run.text.sums[which][0] for run in side], axis=0) for side in (first, second))
    differences = (of_second - of_first) / np.log(2)
    order = np.argsort(-np.abs(differences), kind="stable")[:NUM_DOCUMENTS]
    order = order[np.abs(differences[order]) >= MIN_BITS].tolist()
    chosen = [documents[i] for i in order]
    one, other = (
        [_mean(texts) for texts in zip(*(score(run, chosen, which) for run in side), strict=True)]
        for side in (first, second)
    )
    return [
        DocumentDifference(documents[i].place, float(differences[i]), word_differences(*texts))
        for i, *texts in zip(order, one, other, strict=True)
    ]


def score(run: Run, documents: Sequence[ScoredDocument], which: str) -> Iterator[ScoredText]:
    corpus = encode_documents(documents, run.loaded)
    nats = corpus_nats(run.loaded.engine, corpus, run.text.context, run.text.stride)
    is_scored = corpus.is_scored & corpus.is_trained if which == "assistant" else corpus.is_scored
    for begin, end in pairwise(corpus.offsets):
        tokens = slice(begin, end)
        scored = is_scored[tokens]
        lengths = np.where(scored, corpus.num_bytes[tokens], 0)
        starts = zip(corpus.ids[tokens][scored], corpus.begins_added[tokens][scored], strict=True)
        text = b"".join(corpus.texts[i][int(added) :] for i, added in starts)
        per_byte = np.repeat(nats[tokens] / np.maximum(lengths, 1), lengths)
        yield ScoredText(text, per_byte, np.cumsum(lengths)[~scored].tolist())


def _mean(texts: Sequence[ScoredText]) -> ScoredText:
    return texts[0]._replace(nats=np.mean([one.nats for one in texts], axis=0))


def word_differences(first: ScoredText, second: ScoredText) -> list[list[Word]]:
    """The words of a text, in the parts between control tokens, with how many bits more each takes under the second."""
    assert first.text == second.text, "both sides score the same bytes"
    bits = np.concatenate(([0.0], np.cumsum(second.nats - first.nats))) / np.log(2)
    borders = sorted({0, *first.breaks, len(first.text)})
    parts = []
    for start, end in pairwise(borders):
        places = [(start + match.start(), start + match.end()) for match in _WORD.finditer(first.text[start:end])]
        words = [Word(first.text[a:b].decode(errors="replace"), float(bits[b] - bits[a])) for a, b in places]
        if any(word.text.strip() or abs(word.bits) >= MIN_BITS for word in words):
            parts.append(words)
    return parts


# A verdict as lines of the terminal, as a page, and as JSON.

BETTER, WORSE = f"bg:#a6dfbb {DARK}", f"bg:#f8cfae {DARK}"
TITLE = "Verdict"
CAPTION = "The sides, on the same conversations; in parentheses 95 % intervals"
NAMES_OF_TEXT = {"all": "bits per byte of all text", "assistant": "bits per byte of the assistant's text"}


@dataclass(frozen=True)
class Verdict:
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
        return [f"{side.letter}: {', '.join(run.name for run in side.runs)}" for side in self.sides]

    @property
    def note(self) -> str:
        best = ", ".join(side.letter for side in frontier(self.sides))
        parts = [f"No other side is at least as good in bits per byte, latency and size as: {best}."]
        parts += [f"{name} needs {in_bits(bits)} bits per byte." for name, bits in self.baselines.items() if bits]
        return " ".join(parts)

    @property
    def documents_title(self) -> str:
        one, other = (side.letter for side in self.sides[:2])
        return f"Where {one} and {other} differ most: bits that {other} needs more, by word from {MIN_BITS:.0f} bit on"

    def rows(self) -> Iterator[tuple[str, ...]]:
        bits = [(side.bits_per_byte, in_bits, bits_range) for side in self.sides]
        shares = [(side.skills, percent, percent_range) for side in self.sides]
        yield NAMES_OF_TEXT[self.sides[0].which], *(_with_interval(*one) for one in bits)
        if questions := self.sides[0].skills.n:
            yield f"right answers, of {questions}", *(_with_interval(*one) for one in shares)
        yield "ms a token", *(number(side.token_ms) for side in self.sides)
        yield "MB of weights", *(number(side.megabytes) for side in self.sides)


def _with_interval(found: Estimate, show: Callable[[Any], str], show_range: Callable[[Any], str]) -> str:
    return show(found.value) + (f" ({show_range(found.interval)})" if found.interval else "")


def terminal_lines(verdict: Verdict, width: int) -> Iterator[StyledLine]:
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
    text = " ".join(f"|{word.text}|".split("\n"))[1:-1]
    return text if abs(word.bits) < MIN_BITS else f"{text}({word.bits:+.1f})"


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
    sides = [
        {
            "letter": side.letter,
            "runs": [run.name for run in side.runs],
            "bits_per_byte": side.bits_per_byte._asdict(),
            "skills": side.skills._asdict(),
            "token_ms": side.token_ms,
            "size_mb": side.megabytes,
        }
        for side in verdict.sides
    ]
    documents = [
        {"place": one.place, "bits": one.bits, "words": [[word._asdict() for word in part] for part in one.parts]}
        for one in verdict.documents
    ]
    return {
        "verdict": verdict.sentences,
        "text": verdict.sides[0].which,
        "sides": sides,
        "differences": list(map(_difference_json, verdict.differences)),
        "baselines": verdict.baselines,
        "frontier": [side.letter for side in frontier(verdict.sides)],
        "documents": documents,
    }


def _difference_json(found: Difference) -> dict[str, Any]:
    bits, shares = found.bits, found.skills
    noise = {"seed_deviation": bits.noise.deviation, "seed_runs": bits.noise.runs}
    return {
        "side": found.side.letter,
        "bits": {"relative": bits.value, "interval": bits.interval, "is_clear": bits.is_clear, **noise},
        "skills": None if shares is None else shares._asdict() | {"is_clear": shares.is_clear},
    }


def compare_sides(
    sides_of_names: Sequence[Sequence[str]],
    on_measured: Callable[[Run], None],
    data: Path,
    format: str | None = None,
    limit: int = LIMIT,
    tokens: Path | None = None,
    device: str = "auto",
    threads: int | None = None,
) -> Verdict:
    """Compare sides on a file: a side is one run, or several that differ by their seed alone.

    Calls `on_measured` with each run once it is measured.

    Raises ValueError for a run or data that cannot be read, and for runs that have no text in common.
    """
    documents, questions = read_compared(data, format, limit)

    def measure(name: str) -> Run:
        run = measure_run(name, documents, questions, device, threads)
        on_measured(run)
        return run

    runs = [[measure(name) for name in names] for names in sides_of_names]
    everyone = [run for side in runs for run in side]
    which = which_text(everyone)
    sides = [Side(letter, side, which) for letter, side in zip(ascii_uppercase, runs, strict=False)]
    baselines = baseline_bits(sides[0], documents, tokens)
    differing = []
    if len(sides) == 2 and scored_the_same(everyone, which):
        differing = differing_documents(runs[0], runs[1], documents, which)
    return Verdict(sides, differences(sides), baselines, differing)


def runs_of(name: str) -> list[str]:
    """The runs of a side. Raises ValueError where one of them has no name."""
    runs = [name] if Path(name).exists() else [part.strip() for part in name.split(",")]
    if not all(runs):
        raise ValueError(f"{name!r}: expected names of runs with commas between")
    return runs
