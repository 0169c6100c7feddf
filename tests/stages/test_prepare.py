import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import prepare
from chatmill.conversation import Message, Record, check_turns, parse
from chatmill.datasets import records
from chatmill.datasets.formats.example import Example, as_turns
from chatmill.datasets.repair import SourceParameters, Tally
from chatmill.record_files import read_records
from support.paths import SOURCE


def chat(*texts, system=None):
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    return json.dumps({"messages": messages}, ensure_ascii=False) + "\n"


def run(tmp_path, lines, **parameters):
    raw = tmp_path / "raw.jsonl"
    raw.write_bytes(lines if isinstance(lines, bytes) else "".join(lines).encode("utf-8"))
    files = (tmp_path / f"chats.{name}" for name in ("jsonl", "rejects.jsonl", "manifest.json"))
    prepare.main(*files, parameters={"path": raw, "format": "messages"} | parameters)
    return list(read_records(tmp_path / "chats.jsonl")), (tmp_path / "chats.rejects.jsonl").read_text().splitlines()


def test_a_record_holds_the_rendered_conversation(tmp_path):
    [record], rejects = run(tmp_path, [chat("Hi", "Hello <|im_end|>!")])
    assert record.source == "chats"
    assert record.text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello <\\|im_end|>!<|im_end|>\n"
    assert rejects == []


def test_conversations_that_ask_the_same_are_one_group(tmp_path):
    alike = [chat("Hi you!", "a"), chat("hi  you", "b", "c", "d"), chat("Hi you", "a", system="Tools: calculator")]
    others = [chat("Ho", "a"), chat("Hi you", "a", system="Be kind.")]
    groups = [record.group for record in run(tmp_path, alike + others)[0]]
    assert groups[0] == groups[1] == groups[2]
    assert len(set(groups)) == 3
    assert all(re.fullmatch("questions/[0-9a-f]{16}", group) for group in groups)


BAD = [
    ("{", "bad_json"),
    ("[]", "missing_field"),
    (chat("Hi"), "no_answer"),
    (chat("Hi", " "), "empty_turn"),
    (json.dumps({"messages": [{"role": "assistant", "content": "Hi"}] * 2}), "no_answer"),
    (json.dumps({"messages": [{"role": "robot", "content": "Hi"}]}), "unknown_role"),
    (
        json.dumps({"messages": [{"role": "user", "content": "\ud800"}, {"role": "assistant", "content": "x"}]}),
        "not_utf8",
    ),
    (chat("Hi", "é" * 500_001), "too_long"),
    (chat("x" * 17_000_000, "Hi"), "too_long"),
    (chat("Hi", "=" * 50_001), "long_run"),
    (chat(" \n" * 25_001 + "x", "Hi"), "long_run"),
]


@pytest.mark.parametrize(("line", "reason"), BAD, ids=[f"{reason}-{i}" for i, (_, reason) in enumerate(BAD)])
def test_a_bad_entry_is_counted_with_its_place(tmp_path, line, reason):
    records, [reject] = run(
        tmp_path, [chat("Hi", "Hello"), line.strip() + "\n", chat("Ho", "Hello")], max_reject_rate=0.4
    )
    assert len(records) == 2
    assert json.loads(reject)["place"] == f"{tmp_path}/raw.jsonl:2"
    assert json.loads(reject)["reason"] == reason


def test_too_many_rejects_name_the_commonest_reason_its_first_place_and_a_file_of_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [chat("Hi", "Hello"), chat("Hi"), "{\n", "{\n"]
    expected = (
        r"raw\.jsonl:3: not JSON.*: 3 of 4 .*see .*rejects/chats.jsonl\), 2 of them as bad_json: .*prepare\.chats\."
    )
    with pytest.raises(ValueError, match=expected):
        run(tmp_path, lines, max_reject_rate=0.7)
    saved = [json.loads(line)["place"][-1] for line in Path(".cache/rejects/chats.jsonl").read_text().splitlines()]
    assert saved == ["2", "3", "4"]
    assert len(run(tmp_path, lines, max_reject_rate=0.75)[1]) == 3
    assert not Path(".cache/rejects/chats.jsonl").exists()


def test_where_nothing_is_kept_the_section_is_to_be_corrected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faq.csv").write_text("Frage;Antwort\nWo?;Hier.\n")
    mapping = {"format": "table", "columns": {"prompt": "Fragen", "response": "Antwort"}}
    with pytest.raises(
        ValueError, match=r"no column 'Fragen' .* as missing_field: correct prepare\.chats in params\.yaml"
    ):
        run(tmp_path, [], path=tmp_path / "faq.csv", **mapping)


@given(
    st.lists(
        st.builds(Message.from_text, st.sampled_from(["system", "user", "assistant"]), st.text(max_size=2)), max_size=4
    )
)
def test_every_conversation_is_a_valid_record_or_a_reject(conversation):
    tally = Tally()
    entry, *parts = records.entries_of(
        Example("raw:1", None, as_turns(conversation)), "chats", SourceParameters(path="raw", format="messages"), tally
    )
    for part in (entry, *parts):
        if isinstance(part, Record):
            check_turns(parse(part.text))
        else:
            assert re.fullmatch("[a-z0-9_]+", part.reason)
    assert tally.content()["messages"]["read"] == len(conversation)


# on the command line


def stage(folder):
    arguments = ("chats.jsonl", "chats.rejects.jsonl", "m.json")
    result = subprocess.run(
        [sys.executable, SOURCE / "prepare.py", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    return result.returncode, result.stderr.splitlines()


@pytest.mark.parametrize(
    ("section", "content", "problem"),
    [
        ("format: csv", b"x", "unknown format 'csv': expected one of messages, sharegpt"),
        ("{format: messages, limt: 3}", b"x", "unknown parameter prepare.chats.limt"),
        (
            "{format: messages, max_reject_rate: 2}",
            b"x",
            "prepare.chats.max_reject_rate: expected a number of at least 0 and below 1, got 2",
        ),
        (
            "{format: table, columns: {messages: m}, languages: [en]}",
            b"x",
            "params.yaml: languages needs columns.language",
        ),
        (
            "{format: table, columns: {messages: messages, language: l}, languages: [fr]}",
            chat("Hi", "Ho").replace("{", '{"l": "en", ', 1).encode() * 2,
            "raw.jsonl: no conversations remain of 2 (language 2)",
        ),
        ("{format: messages, files: 3}", b"x", "chats.files: expected a string, or a list, each entry a string, got 3"),
        ("{format: messages, files: [3]}", b"x", "chats.files.0: expected a string, got 3"),
        ("format: messages", None, "raw.jsonl: no such file or directory"),
        ("format: messages", b"\xff\n", "raw.jsonl:1: not UTF-8 at byte 0 of the file"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(tmp_path, section, content, problem):
    (tmp_path / "params.yaml").write_text(f"prepare:\n  chats: {{path: raw.jsonl, {section.strip('{}')}}}\n")
    if content is not None:
        (tmp_path / "raw.jsonl").write_bytes(content)
    code, [line] = stage(tmp_path)
    assert code == 1
    assert problem in line
    assert not list(tmp_path.glob("chats*"))
