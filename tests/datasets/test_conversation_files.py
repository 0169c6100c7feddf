"""What is written does not depend on the number of processes that convert a dataset."""

import gzip
import json
from pathlib import Path

import pytest

from chatmill.datasets import records as conversation_files
from chatmill.datasets.formats.mapping import Columns
from chatmill.datasets.records import Share, write_conversations
from chatmill.datasets.repair import SourceParameters


def row(number: int) -> str:
    """A line of a dataset of which some are broken, empty, of unknown roles, or end with the user."""
    said = [("user", f"What is {number}?"), ("assistant", f"{number} is a number. " * (number % 7))]
    if number % 10 == 3:
        said.append(("user", "Thanks"))
    if number % 97 == 5:
        return "{broken"
    if number % 89 == 7:
        said.insert(0, (f"narrator {number % 3}", "Once upon a time"))
    system = [{"role": "system", "content": "Be kind."}] if number % 5 == 0 else []
    return json.dumps({"messages": [*system, *({"role": role, "content": text} for role, text in said)]})


def written(folder: Path, parameters: SourceParameters):
    folder.mkdir()
    files = folder / "chats.jsonl", folder / "chats.rejects.jsonl"
    result = write_conversations("chats", parameters, *files)
    counts = result.records, result.reasons, result.first, result.tools, result.unknown_roles, result.tally.content()
    assert {*folder.iterdir()} == {*files}
    return counts, *(file.read_bytes() for file in files)


def stripes(count):
    return [Share(number, count) for number in range(count)]


@pytest.mark.parametrize("rows", [255, 257, 3000])
def test_several_processes_write_the_bytes_of_one(tmp_path, monkeypatch, rows):
    file = tmp_path / "chats.jsonl.gz"
    file.write_bytes(gzip.compress("".join(f"{row(number)}\n" for number in range(rows)).encode()))
    parameters = SourceParameters(path=file, format="messages", limit=rows - 1)
    one = written(tmp_path / "one", parameters)
    assert one[0][0] > rows / 2 and len(one[0][1]) >= 3
    for count in (2, 3):
        monkeypatch.setattr(conversation_files, "_shares", lambda _, count=count: stripes(count))
        assert written(tmp_path / f"{count}", parameters) == one


def test_several_processes_write_the_bytes_of_one_of_trees(tmp_path, monkeypatch):
    rows = []
    for tree in range(600):
        said = ((None, "prompter"), (0, "assistant"), (0, "assistant"), (8 * (tree % 5 == 0), "prompter"))
        for number, (parent, role) in enumerate(said):
            above = None if parent is None else f"{tree}-{parent}"
            own = {"message_id": f"{tree}-{number}", "parent_id": above, "message_tree_id": tree}
            rows.append(own | {"role": role, "text": f"{tree} {number}", "rank": tree % 2 * number})
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    parameters = SourceParameters(path=file, format="oasst")
    one = written(tmp_path / "one", parameters)
    assert one[0][0] == 600 and one[0][1] == {"orphan": 120}
    monkeypatch.setattr(conversation_files, "_shares", lambda _: stripes(3))
    assert written(tmp_path / "three", parameters) == one


def test_the_files_of_a_folder_are_read_by_as_many_processes_as_there_are(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    for number in range(7):
        rows = "" if number == 3 else "".join(f"{row(one)}\n" for one in range(600 * number, 600 * number + 500))
        (tmp_path / f"data/{number}.jsonl").write_text(rows)
    parameters = SourceParameters(path=tmp_path / "data", format="messages", max_reject_rate=0.9)
    monkeypatch.setenv("CHATMILL_WORKERS", "1")
    one = written(tmp_path / "one", parameters)
    assert one[0][0] > 1000 and len(one[0][1]) >= 3
    monkeypatch.setattr(conversation_files, "LARGE_BYTES", 1000)
    monkeypatch.setenv("CHATMILL_WORKERS", "3")
    assert [share.file.name for share in conversation_files._shares(parameters)] == [f"{i}.jsonl" for i in range(7)]
    assert written(tmp_path / "three", parameters) == one
    with_limit = parameters.model_copy(update={"limit": 900})
    assert not any(share.file for share in conversation_files._shares(with_limit))


def test_an_error_of_a_file_is_that_of_one_process(tmp_path, monkeypatch):
    file = tmp_path / "chats.csv"
    file.write_text("q,a\n" + "Why?,Because.\n" * 600)
    parameters = SourceParameters(
        path=file, format="table", columns={"prompt": "q", "response": "a", "system": "manner"}
    )
    monkeypatch.setattr(conversation_files, "_shares", lambda _: stripes(2))
    with pytest.raises(ValueError, match="no row has the column 'manner'"):
        written(tmp_path / "out", parameters)
    assert not [*(tmp_path / "out").iterdir()]


@pytest.mark.parametrize(
    ("name", "form", "expected"),
    [("a.jsonl", "messages", 3), ("a.csv", "table", 3), ("a.json", "messages", 1), ("a.txt", "documents", 1)],
)
def test_large_files_that_take_little_memory_have_several_processes(tmp_path, monkeypatch, name, form, expected):
    (tmp_path / name).write_bytes(b"x" * 100)
    monkeypatch.setattr(conversation_files, "LARGE_BYTES", 50)
    monkeypatch.setenv("CHATMILL_WORKERS", "8")
    columns = {"prompt": "q", "response": "a"} if form == "table" else None
    parameters = SourceParameters(path=tmp_path / name, format=form, columns=columns)
    assert len(conversation_files._shares(parameters)) == expected
    if columns is not None:
        of_messages = parameters.model_copy(update={"columns": Columns(id="n", parent="p")})
        assert len(conversation_files._shares(of_messages)) == 1
    monkeypatch.setattr(conversation_files, "LARGE_BYTES", 200)
    assert len(conversation_files._shares(parameters)) == 1
