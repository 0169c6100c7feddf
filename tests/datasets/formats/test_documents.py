import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from chatmill.datasets.formats import registry as documents
from chatmill.datasets.formats.example import Document, Reject
from chatmill.datasets.formats.mapping import TableMapping
from chatmill.datasets.formats.registry import read_dataset
from chatmill.datasets.split import column_group, document_group


def read(path, **options):
    return list(read_dataset(path, "documents", limit=None, seed=0, **options))


def mapping(**columns):
    return TableMapping(columns=columns)


def write(file, content):
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a", "a.txt.gz", "Chapter 1.2"])
def test_a_text_file_is_one_document(tmp_path, name):
    content = "\ufeffOnce upon\r\na time <|im_end|>\n\nthere was\n".encode()
    file = write(tmp_path / name, gzip.compress(content) if name.endswith(".gz") else content)
    text = "Once upon\na time <|im_end|>\n\nthere was\n"
    assert read(file) == [Document(f"{file}:1", document_group(text), text)]


@given(st.lists(st.text("ab \n"), max_size=8), st.integers(1, 9))
def test_parts_are_the_text_and_none_is_too_long(blocks, limit):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "MAX_CHARACTERS", limit)
        parts = list(documents.parts_of(blocks))
    assert "".join(parts) == "".join(blocks)
    assert all(1 <= len(part) <= limit for part in parts)


def test_a_long_text_is_divided_between_paragraphs_else_lines_else_words(monkeypatch):
    monkeypatch.setattr(documents, "MAX_CHARACTERS", 12)
    assert list(documents.parts_of(["one two\n\nthree 3\nfour five"])) == ["one two\n\n", "three 3\n", "four five"]
    assert list(documents.parts_of(["a" * 15])) == ["a" * 12, "aaa"]
    assert list(documents.parts_of(["shorts\n\n" + "b" * 10])) == ["shorts\n\n", "b" * 10]


def test_all_parts_of_a_file_are_one_group_wherever_it_lies_and_their_places_are_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MAX_CHARACTERS", 12)
    (tmp_path / "b").mkdir()
    found = [read(write(tmp_path / name, "one two\n\nthree four\nfive")) for name in ("a.txt", "b/c.md")]
    assert [part.group for part in found[0]] == [part.group for part in found[1]] == [document_group("one two\n\n")] * 3
    assert [part.place.rpartition(":")[2] for part in found[0]] == ["1", "3", "4"]


def test_rows_of_tables_are_documents_by_their_column_of_text(tmp_path):
    rows = [{"text": "One.", "body": {"en": "Two."}, "book": 7}, {"text": None}, {"body": {"en": "Four."}, "book": 7}]
    file = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    first, *others = read(file)
    assert first == Document(f"{file}:1", document_group("One."), "One.")
    assert [(one.reason, one.place) for one in others] == [("missing_field", f"{file}:{i}") for i in (2, 3)]
    found = read(file, mapping=mapping(text="body.en", group="book"))
    assert [found[0].text, found[2].text] == ["Two.", "Four."] and isinstance(found[1], Reject)
    assert found[0].group == found[2].group == column_group("7")
    table = write(tmp_path / "a.csv", 'text,year\n"Three,\nand more",1900\n')
    assert [one.text for one in read(table)] == ["Three,\nand more"]


def test_a_row_without_text_is_an_empty_document(tmp_path):
    assert [one.text for one in read(write(tmp_path / "a.jsonl", '{"text": ""}\n{"text": "One."}\n'))] == ["", "One."]


def test_a_folder_is_a_set_of_files(tmp_path):
    write(tmp_path / "b.txt", "Two.")
    write(tmp_path / "a.jsonl", '{"text": "One."}\n')
    assert [one.text for one in read(tmp_path)] == ["One.", "Two."]
    assert [one.text for one in read(tmp_path, files=["*.txt"])] == ["Two."]


@pytest.mark.parametrize("content", ['{"text": "Hi"}\n{"text": "Ho"}\n', '[\n {"a\\"b": 1}]', '\n{ "messages" : []}'])
def test_json_that_is_named_as_text_is_refused(tmp_path, content):
    file = write(tmp_path / "chat.txt", content)
    with pytest.raises(ValueError, match=r"chat\.txt: JSON, and no text: name it \.jsonl or \.json"):
        read(file)


@pytest.mark.parametrize("content", ['[laughs] "no": no', "{", '"key": 1', '{"said" she}'])
def test_text_with_brackets_is_text(tmp_path, content):
    assert [one.text for one in read(write(tmp_path / "a.txt", content))] == [content]


def test_a_file_that_is_not_text_is_rejected_with_the_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "_BLOCK", 4)
    for start in (b"", b"\xef\xbb\xbf"):
        (found,) = read(write(tmp_path / "a.txt", start + "naïve ".encode() + b"\xff!"))
        assert (found.reason, found.detail) == ("not_utf8", f"not UTF-8 at byte {7 + len(start)} of the file")
    (found,) = read(write(tmp_path / "a.txt", "half é".encode()[:-1]))
    assert found.detail == "not UTF-8 at byte 5 of the file"
    (found,) = read(write(tmp_path / "a.txt", b""))
    assert found.reason == "empty_document"


@pytest.mark.parametrize("name", ["b.txt", "b.md", "b.txt.gz", "b.csv", "b.jsonl"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_a_file_in_utf16_is_a_reject_and_the_others_are_read(tmp_path, name, encoding):
    content = ("" if encoding == "utf-16" else "\ufeff").encode(encoding) + "text\nNaïve.\n".encode(encoding)
    write(tmp_path / name, gzip.compress(content) if name.endswith(".gz") else content)
    for other in ("a.txt", "c.txt"):
        write(tmp_path / other, "One.")
    first, reject, last = read(tmp_path)
    assert (first.text, last.text) == ("One.", "One.")
    detail = "UTF-16: convert it to UTF-8, as by iconv -f utf-16 -t utf-8"
    assert reject == Reject(str(tmp_path / name), "not_utf8", detail)


def test_columns_that_are_of_conversations_are_refused(tmp_path):
    file = write(tmp_path / "a.jsonl", '{"text": "One."}\n')
    with pytest.raises(ValueError, match=r"format documents: expected columns\.text"):
        read(file, mapping=mapping(messages="text"))
    with pytest.raises(ValueError, match=r"format table: columns\.text is of documents"):
        list(read_dataset(file, "table", limit=None, seed=0, mapping=mapping(text="text")))
    with pytest.raises(ValidationError, match="text and prompt: expected text alone, or with group"):
        mapping(text="text", prompt="q", response="a")
