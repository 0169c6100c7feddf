"""The test conversations and documents on which models are measured."""

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from chatmill.conversation import Conversation, Record, is_document, parse, text_hash
from chatmill.record_files import read_records

MIN_OF_SOURCE = 200  # conversations of each source in a sample, if it has as many
TALK_SKILLS = ("talk", "recall")  # of generated conversations that are measured otherwise than exercises


class TestSet(NamedTuple):
    """Test records, and the messages of each; a document has none."""

    records: list[Record]
    conversations: list[Conversation]

    @property
    def sources(self) -> list[str]:
        return [record.source for record in self.records]


class Question(NamedTuple):
    """A conversation to answer, the scoring of the answer, and its rank among those of its skill and phrasing."""

    conversation: Conversation
    skill: dict[str, Any]
    rank: int


class TestSample(NamedTuple):
    """What is read of a test set that may be larger than memory."""

    test: TestSet  # for bits per byte
    questions: list[Question]  # of skills
    talk_questions: dict[str, list[Question]]  # to a persona, by their kind (talk_kind)
    talk: list[Conversation]  # conversations without `skill` that end with a true answer, in the order of their hashes


class Line(NamedTuple):
    digest: int
    number: int  # different for each line
    record: Record


def read_test_set(file: Path, limit: int | None = None) -> TestSet:
    """The conversations of a file, or at most `limit`, evenly spread. Raises ValueError with file and line."""
    lines = list(_read_lines(file))
    return _parse_lines(file, lines[:: 1 if limit is None else -(-len(lines) // limit)])


def sample_test_set(
    file: Path, conversations: int | None, questions: int, talk: int, talk_questions: int = 0
) -> TestSample:
    """A sample of a file, which is read once, line by line: memory does not grow with it.

    Of the `conversations` for bits per byte, MIN_OF_SOURCE are from each source, or as many as it has or as there is
    room for, and the others from the whole file; they are in its order, all of it for None. `questions` is the number
    of those of each skill and phrasing, the first ones; `talk` that of conversations without `skill`, and
    `talk_questions` that of each kind of question to a persona. Texts with the smallest hashes are in the sample, so
    that a record which is added to the data takes the place of at most one other. Raises ValueError with file and line.
    """
    drawn, drawn_talk, asked = list[Line](), list[Line](), list[tuple[int, Line]]()
    by_source, by_kind = defaultdict[str, list[Line]](list), defaultdict[str, list[Line]](list)
    counts = Counter[tuple[str, str]]()
    for line in _read_lines(file):
        skill = line.record.skill
        if conversations is None:
            drawn.append(line)
        else:
            _keep_smallest(drawn, line, conversations)
            _keep_smallest(by_source[line.record.source], line, MIN_OF_SOURCE)
        if skill is None:
            record = line.record
            if not is_document(record.text) and not (record.train and record.train[-1] is False):  # its answer is true
                _keep_smallest(drawn_talk, line, talk)
        elif skill["name"] in TALK_SKILLS:
            _keep_smallest(by_kind[talk_kind(skill)], line, talk_questions)
        elif "answers" in skill or "contains" in skill:
            counts[kind := (skill["name"], skill["phrasing"])] += 1
            if counts[kind] <= questions:
                asked.append((counts[kind] - 1, line))
    if conversations is not None:
        room = max(1, conversations // len(by_source))
        of_sources = (lines[:room] for lines in by_source.values())
        drawn = list({line.number: line for line in chain(*of_sources, drawn)}.values())[:conversations]
    return TestSample(
        _parse_lines(file, sorted(drawn, key=lambda line: line.number)),
        [_question(file, line, rank) for rank, line in asked],
        {kind: [_question(file, line, rank) for rank, line in enumerate(lines)] for kind, lines in by_kind.items()},
        [_parse_line(file, line) for line in drawn_talk],
    )


def _keep_smallest(kept: list[Line], line: Line, limit: int) -> None:
    """Add a line to those with the smallest hashes, in their order."""
    insort(kept, line)
    del kept[limit:]


def talk_kind(skill: dict[str, Any]) -> str:
    """`recall` for a question for a fact, else `first`, `noisy` (a first message with typing errors) or `later`."""
    if skill["name"] == "recall":
        return "recall"
    return "noisy" if skill["noisy"] else "first" if skill["turn"] == 1 else "later"


def _read_lines(file: Path) -> Iterator[Line]:
    number = 0
    for number, record in enumerate(read_records(file), start=1):
        yield Line(text_hash(record.text), number, record)
    if number == 0:
        raise ValueError(f"{file}: no conversations: raise mix.test_share, or add data")


def _parse_lines(file: Path, lines: Sequence[Line]) -> TestSet:
    return TestSet([line.record for line in lines], [_parse_line(file, line) for line in lines])


def _question(file: Path, line: Line, rank: int) -> Question:
    return Question(_parse_line(file, line)[:-1], line.record.skill or {}, rank)


def _parse_line(file: Path, line: Line) -> Conversation:
    try:
        return [] if is_document(line.record.text) else parse(line.record.text)
    except ValueError as error:
        raise ValueError(f"{file}:{line.number}: {error}") from error
