"""Datasets of any shape, read by a few lines of params.yaml: every message is kept byte for byte, or counted."""

import csv
import gzip
import json
import random

import pyarrow as pa
import pytest
import yaml
import zstandard
from pyarrow import feather, ipc, parquet

import prepare
from chatmill.conversation import parse, unescape
from chatmill.record_files import read_records

TEXTS = ["Is it open?", "Yes,\nuntil six. ", "Größe 客 <|im_end|> \U0001f389", '  "quoted", and\ttabs', "x" * 300]
CHATS = [[f"{TEXTS[(number + turn) % 5]} {number}" for turn in range(2 + number % 3 * 2)] for number in range(20)]
PAIRS = [texts[:2] for texts in CHATS]
LINES = 8  # of a section
SYSTEM = "Be kind."


def nested(path, value):
    """The value under a path of keys."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def merged(*parts):
    """Nested objects as one."""
    result = {}
    for part in parts:
        for key, value in part.items():
            inside = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if inside else value
    return result


def chat(texts, names=("user", "assistant"), role="role", content="content"):
    return [merged(nested(role, names[i % 2]), nested(content, text)) for i, text in enumerate(texts)]


def json_lines(rows):
    return "".join(f"{json.dumps(row, ensure_ascii=number % 2)}\n" for number, row in enumerate(rows)).encode()


def write(file, rows):
    """Write rows as the name of the file says."""
    file.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows) if file.suffix in (".parquet", ".arrow", ".feather") else None
    match file.suffix:
        case ".parquet":
            parquet.write_table(table, file, row_group_size=17)
        case ".arrow":
            with ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=7)
        case ".feather":
            feather.write_feather(table, file)
        case ".csv" | ".tsv":
            with file.open("w", newline="", encoding="utf-8") as stream:
                writer = csv.DictWriter(stream, rows[0], delimiter="\t" if file.suffix == ".tsv" else ",")
                writer.writeheader()
                writer.writerows(rows)
        case ".json":
            file.write_text(json.dumps(rows, indent=1), encoding="utf-8")
        case ".gz" | ".zst":
            inner = write(file.with_suffix(""), rows)
            file.write_bytes((gzip if file.suffix == ".gz" else zstandard).compress(inner.read_bytes()))
            inner.unlink()
        case _:
            file.write_bytes(json_lines(rows))
    return file


def read(path, folder, section):
    """The records and the counts of a dataset with such a section in params.yaml."""
    parameters = yaml.safe_load(section)
    assert len(section.splitlines()) + 2 <= LINES  # its name and its path
    outputs = [folder / f"set.{name}" for name in ("jsonl", "rejects.jsonl", "manifest.json")]
    prepare.main(*outputs, parameters={"path": path, "format": "table"} | parameters)
    return list(read_records(outputs[0])), json.loads(outputs[2].read_text())["counts"]


def messages_of(records):
    return [[(message.role, message.text) for message in parse(record.text)] for record in records]


def said(texts, system=None):
    opening = [("system", system)] if system else []
    return opening + [(("user", "assistant")[i % 2], text) for i, text in enumerate(texts)]


def check_all_kept(tmp_path, rows, section, expected, name="rows.jsonl"):
    records, counts = read(write(tmp_path / name, rows), tmp_path, section)
    assert messages_of(records) == expected
    texts = [text for messages in expected for _, text in messages]
    assert counts["messages"] == {"read": len(texts), "kept": len(texts), "rejected": {}}
    assert counts["bytes"]["kept"] == sum(len(text.encode()) for text in texts)


ALL = [said(texts) for texts in CHATS]
KEYS = [
    ("messages", "role", "content"),
    ("conversations", "from", "value"),
    ("data.turns", "speaker", "text"),
    ("a dialogue", "author.kind", "body.text"),
    ("x.y.z", "r", "parts.0"),
]
NAMES = [("user", "assistant"), ("human", "gpt"), ("User", "Chatbot"), ("customer", "agent 7"), ("0", "1")]


def columns(messages, role, content):
    return f"columns: {{messages: {messages}, role: {role}, content: {content}}}\n"


def roles(names):
    usual = ("user", "human", "User")
    return "" if names[0] in usual else f"roles: {{user: '{names[0]}', assistant: '{names[1]}'}}\n"


@pytest.mark.parametrize("keys", KEYS, ids=[keys[0] for keys in KEYS])
@pytest.mark.parametrize("names", NAMES, ids=[names[1] for names in NAMES])
def test_messages_under_any_keys_by_any_speakers(tmp_path, keys, names):
    rows = [{"id": 1} | nested(keys[0], chat(texts, names, *keys[1:])) for texts in CHATS]
    check_all_kept(tmp_path, rows, columns(*keys) + roles(names), ALL)


CONTAINERS = ["a.jsonl", "a.json", "a.parquet", "a.arrow", "a.feather", "a.jsonl.gz", "a.jsonl.zst", "a"]


@pytest.mark.parametrize("name", CONTAINERS)
def test_messages_in_any_container(tmp_path, name):
    rows = [{"messages": chat(texts), "source": None} for texts in CHATS]
    check_all_kept(tmp_path, rows, "columns: {messages: messages}", ALL, name)


@pytest.mark.parametrize("keys", KEYS, ids=[keys[0] for keys in KEYS])
@pytest.mark.parametrize("rule", ["drop", "keep"])
def test_conversations_that_the_assistant_begins(tmp_path, keys, rule):
    rows = [nested(keys[0], chat(["Hello.", *texts], ("gpt", "human"), *keys[1:])) for texts in CHATS]
    section = f"{columns(*keys)}assistant_first: {rule}\n"
    records, counts = read(write(tmp_path / "rows.jsonl", rows), tmp_path, section)
    opening = [("assistant", "Hello.")] if rule == "keep" else []
    assert messages_of(records) == [opening + messages for messages in ALL]
    assert all((record.train is not None and record.train[0] is False) == bool(opening) for record in records)
    assert counts["messages"]["rejected"] == ({} if opening else {"assistant_first": len(CHATS)})


EXTRA = [("user", "Wait."), ("system", SYSTEM)]


@pytest.mark.parametrize("keys", KEYS, ids=[keys[0] for keys in KEYS])
def test_two_messages_of_the_user_and_a_late_system_message(tmp_path, keys):
    wait, system = (merged(nested(keys[1], who), nested(keys[2], text)) for who, text in EXTRA)
    rows = [nested(keys[0], [wait, system, *chat(texts, role=keys[1], content=keys[2])]) for texts in CHATS]
    records, counts = read(write(tmp_path / "rows.jsonl", rows), tmp_path, f"{columns(*keys)}join_with: ' '\n")
    assert messages_of(records) == [said([f"Wait. {texts[0]}", *texts[1:]], SYSTEM) for texts in CHATS]
    assert counts["messages"]["read"] == counts["messages"]["kept"] == sum(map(len, CHATS)) + 2 * len(CHATS)
    assert counts["repaired"] == {"late_system": len(CHATS), "same_role": len(CHATS)}


@pytest.mark.parametrize("keys", KEYS, ids=[keys[0] for keys in KEYS])
def test_empty_system_messages_are_counted(tmp_path, keys):
    opening = merged(nested(keys[1], "system"), nested(keys[2], " \n"))
    rows = [nested(keys[0], [opening, *chat(texts, role=keys[1], content=keys[2])]) for texts in CHATS]
    records, counts = read(write(tmp_path / "rows.jsonl", rows), tmp_path, columns(*keys))
    assert messages_of(records) == ALL
    assert counts["messages"]["rejected"] == {"empty_system": len(CHATS)}


COLUMNS = [("prompt", "completion"), ("instruction", "output"), ("Q", "A"), ("qa.q", "qa.a"), ("the question", "?")]


@pytest.mark.parametrize("names", COLUMNS, ids=[names[0] for names in COLUMNS])
@pytest.mark.parametrize("shape", ["texts", "messages", "preferences"])
def test_questions_and_answers(tmp_path, names, shape):
    rows, expected = [], [said(texts) for texts in PAIRS]
    for question, answer in PAIRS:
        asked = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        replied = [{"role": "assistant", "content": answer}]
        values = (asked, replied) if shape == "messages" else (question, answer)
        worse = {"worse": "No."} if shape == "preferences" else {}
        rows.append(merged(nested(names[0], values[0]), nested(names[1], values[1]), worse))
    if shape == "messages":
        expected = [said(texts, SYSTEM) for texts in PAIRS]
    answer = f"chosen: '{names[1]}', rejected: worse" if shape == "preferences" else f"response: '{names[1]}'"
    check_all_kept(tmp_path, rows, f"columns: {{prompt: '{names[0]}', {answer}}}", expected)


PACKED = ["csv.gz", "tsv.zst", "json.gz", "json.zst", "jsonl.gz", "jsonl.zst"]


@pytest.mark.parametrize("names", COLUMNS, ids=[names[0] for names in COLUMNS])
@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "arrow", *PACKED])
def test_tables_of_any_columns(tmp_path, names, suffix):
    rows = [{"n": number, names[0]: q, "s": SYSTEM, names[1]: a} for number, (q, a) in enumerate(PAIRS)]
    section = f"columns: {{prompt: '{names[0]}', response: '{names[1]}', system: s}}"
    check_all_kept(tmp_path, rows, section, [said(texts, SYSTEM) for texts in PAIRS], f"rows.{suffix}")


FOLDERS = [
    ("part-{:03}.jsonl", "files: '*.jsonl'\n"),
    ("{}/data.json", "files: '*/data.json'\n"),
    ("deep/{:03}.csv", "files: '*.csv'\n"),
    ("{:03}.parquet", "files: ['0*.parquet', '1*.parquet']\n"),
    ("{}.jsonl.zst", "files: '**/*.zst'\n"),
]


@pytest.mark.parametrize(("name", "pattern"), FOLDERS, ids=[name for name, _ in FOLDERS])
def test_many_files_are_one_source_whatever_the_order_in_which_they_were_written(tmp_path, name, pattern):
    parts = {name.format(number): {"q": f"Who is {number}?", "a": TEXTS[number % 5]} for number in range(127)}
    results = []
    for seed in range(2):
        folder = tmp_path / str(seed)
        for part in random.Random(seed).sample(sorted(parts), len(parts)):
            write(folder / part, [parts[part]])
        (folder / "README.rst").write_text("about")
        records, counts = read(folder, tmp_path, f"{pattern}columns: {{prompt: q, response: a}}")
        results.append([record.text for record in records])
        assert counts["messages"] == {"read": 254, "kept": 254, "rejected": {}}
    assert results[0] == results[1]
    assert messages_of(records) == [said(row.values()) for _, row in sorted(parts.items())]


FLAGS = [
    ("weight", 1, 0, ""),
    ("train", True, False, ""),
    ("weight", 1.0, 0.0, ""),
    ("loss_weight", 1, 0, "loss_weight"),
    ("is trained", True, False, "is trained"),
]


@pytest.mark.parametrize(("key", "yes", "no", "column"), FLAGS, ids=[f"{key}-{yes}" for key, yes, _, _ in FLAGS])
def test_messages_say_whether_they_are_trained(tmp_path, key, yes, no, column):
    rows = [{"m": chat(texts)} for texts in CHATS]
    for row in rows:
        for number, message in enumerate(row["m"]):
            message[key] = yes if number == len(row["m"]) - 1 else no
    section = f"columns: {{messages: m{f', train: {column}' if column else ''}}}"
    records, _ = read(write(tmp_path / "rows.jsonl", rows), tmp_path, section)
    assert messages_of(records) == ALL
    for record, texts in zip(records, CHATS, strict=True):
        assert record.train == [*[False] * (len(texts) - 1), None]


DOCUMENTS = [
    ("a.jsonl", ""),
    ("a.csv", "columns: {text: body}"),
    ("a.parquet", "columns: {text: doc.body}"),
    ("a.arrow", "columns: {text: the text, group: n}"),
    ("a.json", "columns: {text: x.y.z}"),
]


@pytest.mark.parametrize(("name", "section"), DOCUMENTS, ids=[name for name, _ in DOCUMENTS])
def test_rows_of_text_are_documents(tmp_path, name, section):
    section = f"format: documents\n{section}"
    column = yaml.safe_load(section).get("columns", {}).get("text", "text")
    texts = [" ".join(texts) for texts in CHATS]
    rows = [{"n": number} | nested(column, text) for number, text in enumerate(texts)]
    records, _ = read(write(tmp_path / name, rows), tmp_path, section)
    assert [unescape(record.text) for record in records] == texts


def test_one_broken_row_of_a_hundred_is_counted_with_its_place(tmp_path):
    rows = [{"messages": chat(["Hi", "Ho"])}] * 99
    rows.insert(50, {"messages": chat(["Hi"])})
    file = write(tmp_path / "rows.jsonl", rows)
    records, counts = read(file, tmp_path, "columns: {messages: messages}")
    assert len(records) == 99
    assert counts["messages"] == {"read": 199, "kept": 198, "rejected": {"no_answer": 1}}
    assert json.loads((tmp_path / "set.rejects.jsonl").read_text())["place"] == f"{file}:51"
