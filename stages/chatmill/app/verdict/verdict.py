"""Judges which of two sides is better: what each run is measured by, whether sides differ, and in which words.

Shapes: D documents, I items.
"""

import json
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from chatmill.app.measurement import Measurement, ScoredDocument, encode_documents, measure, read_documents
from chatmill.app.named_models import load_named, named_errors
from chatmill.datasets.formats.row_readers import open_decompressed
from chatmill.evaluation.answering import answer_questions
from chatmill.evaluation.bits_per_byte import baselines, bits_per_byte
from chatmill.evaluation.held_out_set import Question, sample_test_set
from chatmill.evaluation.intervals import NORMAL_QUANTILE, Estimate, Interval, bits_interval, bootstrap, share
from chatmill.evaluation.ngram import read_counted_text, score_with_ngrams
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.model_loading import LoadedModel

# What a verdict needs of each run: the nats of each conversation, and right answers to exercises.

LIMIT = 1000  # documents
MAX_QUESTIONS = 10  # of each skill and phrasing
MAX_ANSWER = 128  # tokens
WARM_UP, TIMED = 8, 64  # tokens


@dataclass(frozen=True)
class Run:
    name: str
    loaded: LoadedModel
    text: Measurement
    correct: np.ndarray  # (I,) bool, for each question
    token_ms: float  # of an answer, the median


def read_compared(file: Path, format: str | None, limit: int) -> tuple[list[ScoredDocument], list[Question]]:
    """At most `limit` documents of a file, by hash where it is a split that the stage mix wrote; and its exercises.

    Raises ValueError with file and line for what cannot be read.
    """
    if format is None and _is_split(file):
        sample = sample_test_set(file, limit, MAX_QUESTIONS, 0)
        documents = [ScoredDocument(file, record.source, record) for record in sample.test.records]
        return documents, sample.questions
    return read_documents(file, format, limit), []


def _is_split(file: Path) -> bool:
    with open_decompressed(file) as stream, suppress(ValueError):
        entry = json.loads(stream.readline(1 << 24))
        return isinstance(entry, dict) and {"source", "group", "text"} <= entry.keys()
    return False


def measure_run(
    name: str, documents: Sequence[ScoredDocument], questions: list[Question], device: str, threads: int | None
) -> Run:
    """Measure the model of a name: a path, or a DVC run. Raises ValueError with its name."""
    loaded = load_named(name, device, threads)
    with named_errors(name):
        text = measure(loaded, documents)
        session = ChatSession(*loaded, max_tokens=MAX_ANSWER)
        correct = [answer.correct for answer in answer_questions(session, questions, MAX_ANSWER)]
        return Run(name, loaded, text, np.array(correct, bool), _token_ms(loaded))


def _token_ms(loaded: LoadedModel) -> float:
    """The median milliseconds in which the engine reads one token after another."""
    engine, times = loaded.engine, []
    engine.rewind(0)
    for _ in range(min(WARM_UP + TIMED, engine.context - 1)):
        start = time.perf_counter()
        engine.append([0])
        times.append(1000 * (time.perf_counter() - start))
    engine.rewind(0)
    return float(np.median(times[WARM_UP:] or times))


def which_text(runs: Sequence[Run]) -> str:
    """`all` if the runs scored the same bytes of each document, else `assistant`. Raises ValueError where none has it.

    What a template adds to an answer, such as a space before it, adds to its nats, not to what is compared.
    """
    if scored_the_same(runs, "all"):
        return "all"
    if not all(run.text.sums["assistant"][1].any() for run in runs):
        raise ValueError("the models have different templates: expected data with answers of an assistant")
    return "assistant"


def scored_the_same(runs: Sequence[Run], which: str) -> bool:
    """Whether runs scored as many bytes of a text in each document."""
    return all(np.array_equal(run.text.sums[which][1], runs[0].text.sums[which][1]) for run in runs[1:])


# Whether two sides differ: each is one run, or several that differ by their seed alone.

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
    """The difference between two sides, given the nats (C,) of the same texts under each of their runs."""
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


# What a comparison of two or more sides comes to: the differences, and a sentence that says which are clear.


@dataclass(frozen=True)
class Side:
    """A run, or several that differ by their seed alone; `which` text they are scored on."""

    letter: str
    runs: Sequence[Run]
    which: str

    @cached_property
    def nats(self) -> list[np.ndarray]:
        """For each run the nats (D,) of each document."""
        return [run.text.sums[self.which][0] for run in self.runs]

    @property
    def bits_per_byte(self) -> Estimate:
        """The mean of the runs, with the interval over documents."""
        num_bytes = self.runs[0].text.sums[self.which][1]
        nats = np.mean(self.nats, axis=0)
        value = bits_per_byte(float(nats.sum()), int(num_bytes.sum()))
        return Estimate(value, bits_interval(nats, num_bytes), int(np.count_nonzero(num_bytes)))

    @property
    def skills(self) -> Estimate:
        """The share of right answers to exercises; its interval is that of one run."""
        return share(np.mean([run.correct for run in self.runs], axis=0).tolist())

    @property
    def token_ms(self) -> float:
        """The median milliseconds of a token, of the fastest run."""
        return min(run.token_ms for run in self.runs)

    @property
    def megabytes(self) -> float:
        return self.runs[0].loaded.engine.num_bytes / 1e6


class Difference(NamedTuple):
    side: Side
    bits: BitsDifference
    skills: ShareDifference | None


def differences(sides: Sequence[Side]) -> list[Difference]:
    first = sides[0]
    return [
        Difference(
            side,
            bits_difference(first.nats, side.nats),
            share_difference([run.correct for run in first.runs], [run.correct for run in side.runs]),
        )
        for side in sides[1:]
    ]


def sentence(first: Side, difference: Difference) -> str:
    other, bits = difference.side.letter, difference.bits
    parts = [_bits_part(first.letter, other, bits)]
    if difference.skills:
        parts.append(f"skills: {_share_part(first.letter, other, difference.skills)}")
    rerun = f"With another seed alone {first.letter} would differ by up to {_percent(bits.noise.of_rerun)} %"
    source = (
        f"by these {bits.noise.runs} runs and the default model" if bits.noise.runs else "as the default model does"
    )
    return f"{'; '.join(parts)}. {rerun}, {source}."


def _bits_part(first: str, other: str, bits: BitsDifference) -> str:
    if bits.interval is None:
        return f"bits: too few conversations to tell ({100 * bits.value:+.1f} %)"
    low, high = bits.interval
    if not bits.is_clear:
        return f"bits: no clear difference ({100 * bits.value:+.1f} %, {100 * low:+.1f} to {100 * high:+.1f})"
    more, limits = ("more", (low, high)) if bits.value > 0 else ("fewer", (-high, -low))
    return (
        f"{other} needs {_percent(abs(bits.value))} % {more} bits than {first} ({' to '.join(map(_percent, limits))})"
    )


def _share_part(first: str, other: str, found: ShareDifference) -> str:
    shares = f"{_percent(found.first)} % and {_percent(found.second)} %"
    if not found.is_clear:
        return f"no clear difference ({shares})"
    better = other if found.second > found.first else first
    p = f"p = {found.p:.2g}" if found.p >= 0.001 else "p < 0.001"
    return f"{better} better ({shares}, {p})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def frontier(sides: Sequence[Side]) -> list[Side]:
    """The sides for which no other is as good in bits per byte, latency and size, and better in one (Pareto)."""

    def figures(side: Side) -> np.ndarray:
        return np.array([side.bits_per_byte.value or 0.0, side.token_ms, side.megabytes])

    def is_beaten(side: Side) -> bool:
        own = figures(side)
        return any((figures(one) <= own).all() and (figures(one) < own).any() for one in sides if one is not side)

    return [side for side in sides if not is_beaten(side)]


def baseline_bits(side: Side, documents: Sequence[ScoredDocument], tokens: Path | None) -> dict[str, float | None]:
    """Bits per byte of the same text by xz, and by the n-grams of encoded training text, if it is given."""
    run = side.runs[0]
    _, tokenizer, template, *_ = run.loaded
    corpus = encode_documents(documents, run.loaded)
    result = {"xz": baselines(corpus.text())["xz"]} if side.which == "all" else {}
    if tokens is not None:
        counted = read_counted_text(tokens, tokenizer, template.name, Path(run.name))
        nats = score_with_ngrams(counted, tokenizer, corpus.ids, corpus.offsets).nats
        result["ngram"] = corpus.bits_per_byte(nats, trained_only=side.which == "assistant")
    return result
