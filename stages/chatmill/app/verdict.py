"""Judges which of two sides is better: what each run is measured by, and whether sides differ.

Shapes: D documents, I items.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple

import numpy as np

from chatmill.app.measurement import Measurement, ScoredDocument, can_say, measure, read_documents, text_of
from chatmill.app.named_models import load_named, named_errors
from chatmill.app.terminal.text import StyledLine, aligned, shorten, wrap_text
from chatmill.conversation import Record, parse_record
from chatmill.engines.engine import Engine
from chatmill.evaluation.answering import answer_questions, graded
from chatmill.evaluation.bits_per_byte import bits_per_byte
from chatmill.evaluation.held_out_set import Question, sample_test_set
from chatmill.evaluation.intervals import NORMAL_QUANTILE, Estimate, Interval, bits_interval, bootstrap, share
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.model_loading import LoadedModel
from chatmill.report import markup
from chatmill.report.markup import Html, bits_range, in_bits, number, percent, percent_range, tag

# What a verdict needs of each run: the nats of each document, and right answers to exercises.

LIMIT = 1000  # documents
MAX_LINE = 1 << 24  # bytes
MAX_QUESTIONS = 10  # of each skill and phrasing
MAX_ANSWER = 128  # tokens
WARM_UP, TIMED = 8, 64  # tokens


class Run(NamedTuple):
    name: str
    loaded: LoadedModel
    text: Measurement
    correct: np.ndarray  # (I,) bool, for each question
    token_ms: float  # of an answer, the median


def measure_runs(
    names: Sequence[str],
    data: Path,
    format: str | None = None,
    limit: int = LIMIT,
    device: str = "auto",
    threads: int | None = None,
) -> Iterator[Run]:
    """Measure models, which are paths or DVC runs, one after the other on the documents that all of them can say.

    Raises ValueError with the name of a model, or with file and line, for what cannot be read.
    """
    documents, questions = _read(data, format, limit)
    models = {name: load_named(name, device, threads) for name in names}
    documents = [one for one in documents if all(can_say(loaded, one) for loaded in models.values())]
    for name, loaded in models.items():
        with named_errors(name):
            text = measure(loaded, documents)
            answers = answer_questions(ChatSession(*loaded, max_tokens=MAX_ANSWER), questions, MAX_ANSWER)
            run = Run(name, loaded, text, np.array(graded(questions, answers), bool), _token_ms(loaded.engine))
        yield run


def _read(file: Path, format: str | None, limit: int) -> tuple[list[ScoredDocument], list[Question]]:
    """At most `limit` documents of a file, by hash where it is a split that the stage mix wrote; and its exercises."""
    first: Record | None = None
    with file.open("rb") as stream, suppress(ValueError):
        first = parse_record(stream.readline(MAX_LINE))
    if format or first is None:
        return read_documents(file, format, limit), []
    sample = sample_test_set(file, limit, MAX_QUESTIONS, 0)
    return [ScoredDocument(file, one.source, one) for one in sample.test.records], sample.questions


def _token_ms(engine: Engine) -> float:
    """The median milliseconds in which the engine reads one token after another."""
    times = []
    engine.rewind(0)
    for _ in range(min(WARM_UP + TIMED, engine.context - 1)):
        start = time.perf_counter()
        engine.append([0])
        times.append(1000 * (time.perf_counter() - start))
    engine.rewind(0)
    return float(np.median(times[WARM_UP:] or times))


# Whether two sides differ.

SEED_NOISE = 0.0067  # of 24 seeds of a short run of the default model: tests/benchmarks/seed_noise.py
SEED_FREEDOM = 8


class Noise(NamedTuple):
    deviation: float  # of a run's bits per byte, relative to them
    quantile: float  # standard deviations within which 95 % lie, as sure as the deviation is known
    runs: int  # that it was estimated from beside SEED_NOISE

    @property
    def of_rerun(self) -> float:
        """The relative difference that a run and its rerun with another seed stay below in 95 % of cases."""
        return self.quantile * math.sqrt(2) * self.deviation


class BitsDifference(NamedTuple):
    """By how much the second side needs more bits than the first, relative to it."""

    value: float
    interval: Interval | None  # None where there are too few conversations
    noise: Noise

    @property
    def is_clear(self) -> bool:
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


def bits_difference(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> BitsDifference:
    """The difference between two sides, given the nats (D,) of the same texts under each of their runs."""
    noise = seed_noise([first, second])
    of_first, of_second = (np.mean(side, axis=0) for side in (first, second))
    value = float(of_second.sum() / of_first.sum()) - 1
    sampled = bootstrap(of_second - of_first, of_first)
    if sampled is None:
        return BitsDifference(value, None, noise)
    of_seeds = noise.quantile * noise.deviation * math.sqrt(1 / len(first) + 1 / len(second))
    below, above = (math.hypot(limit - value, of_seeds) for limit in sampled)
    return BitsDifference(value, (value - below, value + above), noise)


def seed_noise(sides: Sequence[Sequence[np.ndarray]]) -> Noise:
    totals = [np.array([run.sum() for run in side]) for side in sides if len(side) > 1]
    freedom = SEED_FREEDOM + sum(len(side) - 1 for side in totals)
    squares = SEED_FREEDOM * SEED_NOISE**2 + sum((((side / side.mean()) - 1) ** 2).sum() for side in totals)
    return Noise(math.sqrt(squares / freedom), student_quantile(freedom), sum(map(len, totals)))


def student_quantile(freedom: int) -> float:
    """The 0.975 quantile of Student's t distribution with 4 degrees of freedom or more, to 0.5 %.

    It is the expansion of Abramowitz and Stegun, 26.7.5.
    """
    z, n = NORMAL_QUANTILE, freedom
    terms = (
        (z**3 + z) / (4 * n),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3),
    )
    return z + sum(terms)


class ShareDifference(NamedTuple):
    """By how much the second side's share of right answers is larger, on the same items."""

    first: float
    second: float
    items: int
    p: float  # the probability of a difference as large where there is none

    @property
    def is_clear(self) -> bool:
        return self.p < 0.05


def share_difference(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> ShareDifference | None:
    """The difference between two sides, given the outcomes (I,), 0 to 1, of each of their runs; None without items.

    One run each is compared by McNemar's exact test. Of several the mean outcomes of each item are, by a sign test of
    which McNemar's is a case: items are independent, runs that answer the same item are not.
    """
    of_first, of_second = (np.mean(side, axis=0) for side in (first, second))
    if not len(of_first):
        return None
    better, worse = int((of_second > of_first).sum()), int((of_second < of_first).sum())
    return ShareDifference(float(of_first.mean()), float(of_second.mean()), len(of_first), sign_test(better, worse))


def sign_test(better: int, worse: int) -> float:
    """The two-sided probability that of so many differences as few have one sign, or fewer, if both are as likely."""
    number, fewer = better + worse, min(better, worse)
    ways = sum(math.comb(number, k) for k in range(fewer + 1))
    return min(1.0, 2 * ways / int(2**number))


# The verdict: as it is printed with --json, and all that views show.

NUM_DOCUMENTS = 20
MIN_BITS = 1.0  # of a document that is told


def judge(sides: Sequence[Sequence[Run]]) -> dict[str, Any]:
    """Compare sides with the first: each is one run, or several that differ by their seed alone.

    Raises ValueError for runs that have no text in common.
    """
    everyone = [run for side in sides for run in side]
    which = "all" if scored_the_same(everyone, "all") else "assistant"
    if not all(run.text.sums[which][1].any() for run in everyone):
        raise ValueError("the models have different templates: expected data with answers of an assistant")
    lettered = dict(zip(ascii_uppercase, sides, strict=False))
    figures = [side_figures(letter, side, which) for letter, side in lettered.items()]
    differences = [difference(letter, sides[0], side, which) for letter, side in [*lettered.items()][1:]]
    return {
        "verdict": [one.pop("sentence") for one in differences],
        "text": which,
        "sides": figures,
        "differences": differences,
        "frontier": frontier(figures),
        "documents": differing_documents(sides[0], sides[1], which) if len(sides) == 2 else [],
    }


def differing_documents(first: Sequence[Run], second: Sequence[Run], which: str) -> list[dict[str, Any]]:
    """The documents that differ most, by MIN_BITS or more, and the bits that the second side needs more for each."""
    bits = (_mean_nats(second, which) - _mean_nats(first, which)) / math.log(2)
    documents = first[0].text.documents
    most = [i for i in np.argsort(-np.abs(bits), kind="stable")[:NUM_DOCUMENTS].tolist() if abs(bits[i]) >= MIN_BITS]
    return [{"place": documents[i].place, "bits": float(bits[i]), "text": text_of(documents[i])} for i in most]


def scored_the_same(runs: Sequence[Run], which: str) -> bool:
    """Whether all runs scored the same number of bytes in each document.

    Where templates differ they still do: what one adds to an answer, such as a space, counts in nats, not in bytes.
    """
    return all(np.array_equal(run.text.sums[which][1], runs[0].text.sums[which][1]) for run in runs[1:])


def _mean_nats(side: Sequence[Run], which: str) -> np.ndarray:
    mean: np.ndarray = np.mean([run.text.sums[which][0] for run in side], axis=0)  # (D,)
    return mean


def side_figures(letter: str, side: Sequence[Run], which: str) -> dict[str, Any]:
    """Estimates for the mean of the runs; the interval of `skills` is that of one run."""
    nats, num_bytes = _mean_nats(side, which), side[0].text.sums[which][1]
    value = bits_per_byte(float(nats.sum()), int(num_bytes.sum()))
    return {
        "letter": letter,
        "runs": [run.name for run in side],
        "bits_per_byte": Estimate(value, bits_interval(nats, num_bytes), int(np.count_nonzero(num_bytes)))._asdict(),
        "skills": share(np.mean([run.correct for run in side], axis=0).tolist())._asdict(),
        "token_ms": min(run.token_ms for run in side),
        "size_mb": side[0].loaded.engine.num_bytes / 1e6,
    }


def frontier(sides: Sequence[dict[str, Any]]) -> list[str]:
    """The letters of sides for which no other is as good in bits, latency and size, and better in one (Pareto)."""
    figures = np.array([(side["bits_per_byte"]["value"] or 0.0, side["token_ms"], side["size_mb"]) for side in sides])
    beaten = [((figures <= own).all(axis=1) & (figures < own).any(axis=1)).any() for own in figures]
    return [side["letter"] for side, is_beaten in zip(sides, beaten, strict=True) if not is_beaten]


def difference(letter: str, first: Sequence[Run], second: Sequence[Run], which: str) -> dict[str, Any]:
    """How a side, of this letter, differs from side A; and the `sentence` that says so."""
    bits = bits_difference(*([run.text.sums[which][0] for run in side] for side in (first, second)))
    skills = share_difference(*([run.correct for run in side] for side in (first, second)))
    noise = bits.noise
    rerun = f"With another seed alone A would differ by up to {_percent(noise.of_rerun)} %"
    source = f"by these {noise.runs} runs and the default model" if noise.runs else "as the default model does"
    about_skills = f"; skills: {_skills_part(letter, skills)}" if skills else ""
    return {
        "side": letter,
        "bits": {
            "relative": bits.value,
            "interval": bits.interval,
            "is_clear": bits.is_clear,
            "seed_deviation": noise.deviation,
            "seed_runs": noise.runs,
        },
        "skills": skills and skills._asdict() | {"is_clear": skills.is_clear},
        "sentence": f"{_bits_part(letter, bits)}{about_skills}. {rerun}, {source}.",
    }


def _bits_part(letter: str, bits: BitsDifference) -> str:
    if bits.interval is None:
        return f"bits: too few conversations to tell ({100 * bits.value:+.1f} %)"
    low, high = bits.interval
    if not bits.is_clear:
        return f"bits: no clear difference ({100 * bits.value:+.1f} %, {100 * low:+.1f} to {100 * high:+.1f})"
    more, low, high = ("more", low, high) if bits.value > 0 else ("fewer", -high, -low)
    return f"{letter} needs {_percent(abs(bits.value))} % {more} bits than A ({_percent(low)} to {_percent(high)})"


def _skills_part(letter: str, skills: ShareDifference) -> str:
    shares = f"{_percent(skills.first)} % and {_percent(skills.second)} %"
    if not skills.is_clear:
        return f"no clear difference ({shares})"
    p = f"p = {skills.p:.2g}" if skills.p >= 0.001 else "p < 0.001"
    return f"{letter if skills.second > skills.first else 'A'} better ({shares}, {p})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


# A verdict as lines of the terminal, and as a page.

CAPTION = "The sides, on the same conversations; in parentheses 95 % intervals"
NAMES_OF_TEXT = {"all": "bits per byte of all text", "assistant": "bits per byte of the assistant's text"}
DOCUMENTS_TITLE = "Where A and B differ most: bits that B needs more"
MAX_TEXT = 200  # characters of a conversation


def heads(verdict: dict[str, Any]) -> list[str]:
    return [f"{side['letter']}: {', '.join(side['runs'])}" for side in verdict["sides"]]


def note(verdict: dict[str, Any]) -> str:
    return f"No other side is at least as good in bits per byte, latency and size as: {', '.join(verdict['frontier'])}."


def _rows(verdict: dict[str, Any]) -> Iterator[tuple[str, ...]]:
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


def verdict_lines(verdict: dict[str, Any], width: int) -> Iterator[StyledLine]:
    yield from ([("", head)] for head in heads(verdict))
    yield []
    if verdict["documents"]:
        yield [("bold", DOCUMENTS_TITLE)]
        for line in _document_lines(verdict):
            yield from ([("", part)] for part in wrap_text(line, width))
        yield []
    head, *table = _rows(verdict)
    yield from aligned(CAPTION, head, table)
    yield from ([("", line)] for line in wrap_text(note(verdict), width))
    yield []
    yield from ([("bold", line)] for text in verdict["verdict"] for line in wrap_text(text, width))


def _document_lines(verdict: dict[str, Any]) -> Iterator[str]:
    """For each document on which two sides differ the bits that B needs more, and the beginning of its text."""
    for document in verdict["documents"]:
        yield f"{document['bits']:+.1f} {document['place']}: {shorten(document['text'], MAX_TEXT)}"


def verdict_page(verdict: dict[str, Any]) -> Html:
    """The same as a page that loads nothing."""
    head, *table = _rows(verdict)
    content: list[Html] = [tag("p", tag("strong", text)) for text in verdict["verdict"]]
    content.append(tag("ul", *(tag("li", text) for text in heads(verdict))))
    content += [markup.table(CAPTION, head, table), tag("p", note(verdict), class_="note")]
    if verdict["documents"]:
        lines = (tag("li", line) for line in _document_lines(verdict))
        content.append(markup.section(DOCUMENTS_TITLE, tag("ul", *lines)))
    return markup.document("Verdict", *content)
