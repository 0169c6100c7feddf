import pytest

from chatmill.conversation.chatml import Message, Record, render
from chatmill.evaluation.held_out_set import read_test_set

CONVERSATIONS = [[Message.from_text("user", str(i))] for i in range(7)]


def write(file):
    skill = {"name": "add", "answers": ["2"]}
    records = [
        Record(f"source{i % 2}", f"key{i}", render(conversation), skill=skill)
        for i, conversation in enumerate(CONVERSATIONS)
    ]
    file.write_text("".join(record.to_json() for record in records))
    return file


def test_some_conversations_are_evenly_spread_over_the_file(tmp_path):
    file = write(tmp_path / "test.jsonl")
    assert read_test_set(file).conversations == CONVERSATIONS
    few = read_test_set(file, limit=3)
    assert few.conversations == CONVERSATIONS[::3] and few.sources == ["source0", "source1", "source0"]
    assert few.skills == [{"name": "add", "answers": ["2"]}] * 3


def test_a_damaged_conversation_is_told_by_its_line_and_an_empty_file_by_its_remedy(tmp_path):
    file = tmp_path / "test.jsonl"
    file.write_text(Record("talk", "1", render(CONVERSATIONS[0])).to_json() + Record("talk", "2", "nobody").to_json())
    with pytest.raises(ValueError, match=r"test\.jsonl:2: "):
        read_test_set(file)
    file.write_text("")
    with pytest.raises(ValueError, match=r"no conversations: raise mix\.test_share"):
        read_test_set(file)
