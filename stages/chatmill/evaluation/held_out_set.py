"""The test conversations on which models are measured."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chatmill.conversation.chatml import Conversation, parse, read_records


@dataclass(frozen=True)
class TestSet:
    """Test conversations with their sources, and how the last answer of each is scored."""

    sources: list[str]
    conversations: list[Conversation]
    skills: list[dict[str, Any] | None]


def read_test_set(file: Path, limit: int | None = None) -> TestSet:
    """The conversations of a file, or at most `limit`, evenly spread. Raises ValueError with file and line."""
    records = list(enumerate(read_records(file), start=1))
    if not records:
        raise ValueError(f"{file}: no conversations: raise mix.test_share, or add data")
    step = 1 if limit is None else -(-len(records) // limit)
    result = TestSet([], [], [])
    for number, record in records[::step]:
        try:
            result.conversations.append(parse(record.text))
        except ValueError as error:
            raise ValueError(f"{file}:{number}: {error}") from error
        result.sources.append(record.source)
        result.skills.append(record.skill)
    return result
