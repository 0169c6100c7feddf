"""What a verdict needs of each run: the nats of each conversation, and right answers to exercises.

Shapes: D documents, I items.
"""

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from chatmill.app.measurement import Measurement, ScoredDocument, measure, read_documents
from chatmill.app.named_models import load_named, named_errors
from chatmill.datasets.formats.row_readers import open_decompressed
from chatmill.evaluation.answering import answer_questions
from chatmill.evaluation.held_out_set import Question, sample_test_set
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.model_loading import LoadedModel

MAX_QUESTIONS = 10  # of each skill and phrasing
MAX_ANSWER = 128  # tokens
WARM_UP, TIMED = 8, 64  # tokens


class ComparedData(NamedTuple):
    documents: list[ScoredDocument]
    questions: list[Question]  # exercises, each with one right answer


@dataclass(frozen=True)
class Run:
    """A model, and what was measured of it."""

    name: str
    loaded: LoadedModel
    text: Measurement
    correct: np.ndarray  # (I,) bool, for each question
    token_ms: float  # of an answer, the median


def read_compared(file: Path, format: str | None, limit: int) -> ComparedData:
    """At most `limit` documents of a file, by hash where it is a split that the stage mix wrote; and its questions.

    Raises ValueError with file and line for what cannot be read.
    """
    if format is None and _is_split(file):
        sample = sample_test_set(file, limit, MAX_QUESTIONS, 0)
        documents = [ScoredDocument(file, record.source, record) for record in sample.test.records]
        return ComparedData(documents, sample.questions)
    return ComparedData(read_documents(file, format, limit), [])


def _is_split(file: Path) -> bool:
    with open_decompressed(file) as stream, suppress(ValueError):
        entry = json.loads(stream.readline(1 << 24))
        return isinstance(entry, dict) and {"source", "group", "text"} <= entry.keys()
    return False


def measure_run(name: str, data: ComparedData, device: str, threads: int | None) -> Run:
    """Measure the model of a name: a path, or a DVC run. Raises ValueError with its name."""
    loaded = load_named(name, device, threads)
    with named_errors(name):
        text = measure(loaded, data.documents)
        session = ChatSession(*loaded, max_tokens=MAX_ANSWER)
        correct = [answer.correct for answer in answer_questions(session, data.questions, MAX_ANSWER)]
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


# Measures the sides of a comparison on the same data, and judges them.

LIMIT = 1000  # documents
