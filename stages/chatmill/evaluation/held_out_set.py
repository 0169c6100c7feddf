"""The test conversations and documents on which models are measured."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
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

    @property
    def num_questions(self) -> int:
        return len(self.questions) + sum(map(len, self.talk_questions.values()))


class Line(NamedTuple):
    number: int
    record: Record


class SmallestHashes:
    """Of the records that are added, the `limit` ones whose texts have the smallest hashes; all for None.

    A record that is added to the data takes the place of at most one other.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._heap: list[tuple[int, int, Record]] = []  # the largest hash first

    def add(self, digest: int, line: Line) -> None:
        entry = -digest, -line.number, line.record
        if self._limit is None or len(self._heap) < self._limit:
            heapq.heappush(self._heap, entry)
        elif self._heap:
            heapq.heappushpop(self._heap, entry)

    def lines(self) -> list[Line]:
        """The records, the smallest hash first."""
        return [Line(-number, record) for _, number, record in sorted(self._heap, key=lambda e: e[:2], reverse=True)]


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
    `talk_questions` that of each kind of question to a persona, by hash. Raises ValueError with file and line.
    """
    drawn, drawn_talk = SmallestHashes(conversations), SmallestHashes(talk)
    by_source: defaultdict[str, SmallestHashes] = defaultdict(lambda: SmallestHashes(MIN_OF_SOURCE))
    by_kind: defaultdict[str, SmallestHashes] = defaultdict(lambda: SmallestHashes(talk_questions))
    counts: Counter[tuple[str, str]] = Counter()
    asked: list[tuple[int, Line]] = []
    for line in _read_lines(file):
        record, digest = line.record, text_hash(line.record.text)
        drawn.add(digest, line)
        by_source[record.source].add(digest, line)
        if record.skill is None:
            if ends_with_true_answer(record):
                drawn_talk.add(digest, line)
        elif record.skill["name"] in TALK_SKILLS:
            by_kind[talk_kind(record.skill)].add(digest, line)
        elif "answers" in record.skill or "contains" in record.skill:
            counts[kind := (record.skill["name"], record.skill["phrasing"])] += 1
            if counts[kind] <= questions:
                asked.append((counts[kind] - 1, line))
    selected = _with_every_source(drawn.lines(), [one.lines() for one in by_source.values()], conversations)
    return TestSample(
        _parse_lines(file, sorted(selected, key=lambda line: line.number)),
        [_question(file, line, rank) for rank, line in asked],
        {kind: [_question(file, line, rank) for rank, line in enumerate(one.lines())] for kind, one in by_kind.items()},
        [_parse_line(file, line) for line in drawn_talk.lines()],
    )


def ends_with_true_answer(record: Record) -> bool:
    """Whether a record is a conversation whose last message is not excluded from training."""
    return not is_document(record.text) and not (record.train and record.train[-1] is False)


def talk_kind(skill: dict[str, Any]) -> str:
    """`recall` for a question for a fact, else `first`, `noisy` (a first message with typing errors) or `later`."""
    if skill["name"] == "recall":
        return "recall"
    return "noisy" if skill["noisy"] else "first" if skill["turn"] == 1 else "later"


def _with_every_source(drawn: list[Line], by_source: list[list[Line]], limit: int | None) -> Iterable[Line]:
    if limit is None:
        return drawn
    room = max(1, limit // len(by_source))
    selected = {line.number: line for lines in by_source for line in lines[:room]}
    for line in drawn:
        if len(selected) >= limit:
            break
        selected[line.number] = line
    return list(selected.values())[:limit]


def _read_lines(file: Path) -> Iterator[Line]:
    number = 0
    for number, record in enumerate(read_records(file), start=1):
        yield Line(number, record)
    if number == 0:
        raise ValueError(f"{file}: no conversations: raise mix.test_share, or add data")


def _parse_lines(file: Path, lines: Iterable[Line]) -> TestSet:
    lines = list(lines)
    return TestSet([line.record for line in lines], [_parse_line(file, line) for line in lines])


def _question(file: Path, line: Line, rank: int) -> Question:
    return Question(_parse_line(file, line)[:-1], line.record.skill or {}, rank)


def _parse_line(file: Path, line: Line) -> Conversation:
    try:
        return [] if is_document(line.record.text) else parse(line.record.text)
    except ValueError as error:
        raise ValueError(f"{file}:{line.number}: {error}") from error
