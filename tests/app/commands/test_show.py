import gzip
import io
import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chatmill.app.cli import main
from chatmill.app.inputs import parse_input, read_input_file
from chatmill.conversation import BOS, Message, Part, conversation_segments
from chatmill.report.token_view import MARKS, conversation_tokens, text_tokens, visible
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.vocabulary.patterns import PATTERNS
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens, write_folder
from chatmill.tokenizer.vocabulary.vocabulary import byte_level_vocabulary
from support.tiny import byte_tokenizer

LONGER = [b"he", b" w", "é".encode(), "中".encode()[:2], "🙂".encode()[1:3], b"\n\n", b"Ho"]
TOKENIZERS = [
    byte_tokenizer(),
    ChatTokenizer(add_special_tokens(byte_level_vocabulary(LONGER, "bpe", "merge", PATTERNS["qwen2"]), [])),
]
CONVERSATION = [
    Message.from_text("user", "1+1?"),
    Message("assistant", (Part("call", "1+1"), Part("output", "2"), Part("text", "Two."))),
]
each_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda tokenizer: tokenizer.vocabulary.type)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("show") / "bytes"
    write_folder(byte_tokenizer().vocabulary, folder)
    return folder


def show(*arguments):
    return main(["show", *map(str, arguments)])


def read_back(shown):
    """The bytes of visible tokens, joined; for text without any of the marks themselves."""
    marks = {mark: character for character, mark in MARKS.items()}
    result = b""
    for code, piece, character in re.findall(r"⟨U\+(\w+)⟩|⟨([0-9a-f ]+)⟩|([\s\S])", shown.replace("◌", "")):
        result += (
            bytes.fromhex(piece)
            if piece
            else (chr(int(code, 16)) if code else marks.get(character, character)).encode()
        )
    return result


TEXT = st.text(st.characters(exclude_characters=[*MARKS.values(), *"⟨⟩◌"], exclude_categories=["Cs"]))


@each_tokenizer
@given(text=TEXT)
@example(text="naïve 中文 🙂\n\t e\u0301\ufe0f\u200d\x1b\x7f\xa0\u2028")
def test_shown_tokens_joined_give_the_text_back(tokenizer, text):
    tokens = text_tokens(text, tokenizer)
    assert b"".join(token.content for token in tokens) == text.encode()
    assert read_back("".join(visible(token.content) for token in tokens)) == text.encode()


@each_tokenizer
@pytest.mark.parametrize("template", ["chatml", "markers"])
def test_tokens_of_a_conversation_are_the_text_that_a_model_reads(tokenizer, template):
    tokens = conversation_tokens(CONVERSATION, tokenizer, template)
    expected = conversation_segments(CONVERSATION, template)
    assert b"".join(token.content for token in tokens).decode() == "".join(part.text for part in expected)
    assert sum(token.is_control for token in tokens) == sum(part.control for part in expected)


MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
RENDERED = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n"
OTHER = '{"text": "Bye"}\n'


@pytest.mark.parametrize(
    ("content", "number"),
    [
        (RENDERED, 1),
        (BOS + RENDERED.strip(), 1),
        (json.dumps({"source": "talk", "group": "talk/1", "text": RENDERED}), 1),
        (json.dumps({"model": "x", "messages": MESSAGES}, indent=2), 1),
        (json.dumps(MESSAGES), 1),
        (json.dumps([{"text": "Bye"}, {"messages": MESSAGES}]), 2),
        (OTHER * 2 + json.dumps({"messages": MESSAGES}) + "\n" + OTHER, 3),
    ],
)
def test_a_conversation_is_known_in_every_form(content, number, tmp_path):
    expected = [Message.from_text("user", "Hi"), Message.from_text("assistant", "Ho")]
    assert parse_input(content.encode(), number, "it") == expected
    for file, data in (("a.txt", content.encode()), ("a.txt.gz", gzip.compress(content.encode()))):
        (tmp_path / file).write_bytes(data)
        assert read_input_file(tmp_path / file, number) == expected
    if content.startswith(("{", "[")):
        (tmp_path / "a.jsonl").write_text(content)
        assert read_input_file(tmp_path / "a.jsonl", number) == expected


def test_a_pipe_is_read_where_there_is_no_text(tokenizer, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("naïve".encode())))
    assert show("--tokenizer", tokenizer) == 0
    assert capsys.readouterr().out.startswith("n   a  ⟨c3⟩ ⟨af⟩ v   e")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x"], "no data/tokenizer here: name a tokenizer with --tokenizer, or run `dvc repro` in the folder"),
        (["x", "--tokenizer", "nowhere"], "nowhere: no such file: expected a tokenizer's folder or file"),
        (["x", "--index", 0], "--index: expected 1 or more, got 0"),
        (["x", "--index", 2], "TEXT: no conversation 2: the input has fewer"),
        (["x", "--file", "y"], "text and file: pass only one of TEXT, --file and --source"),
        ([""], "TEXT: expected a text of 1 to 1,000,000 characters, got 0"),
        (["<|im_start|>user"], "TEXT: not a rendered conversation at character 0: '<|im_start|>user'"),
        (["a\udcff"], "TEXT: not UTF-8 at byte 1"),
        (['{"messages": [{"role": "robot", "content": "x"}]}'], "TEXT:1: unknown role 'robot': expected one of"),
        (["--file", "nowhere.jsonl"], "nowhere.jsonl: no such file or directory"),
        (["--file", "bad.jsonl"], "bad.jsonl:1: no column 'messages' in an object of 'a'"),
        (["--file", "bad.jsonl", "--index", 2], "bad.jsonl:2: not JSON: Expecting value"),
        (["--file", "few.jsonl", "--index", 2], "few.jsonl: no conversation 2: the input has fewer"),
    ],
)
def test_mistakes_are_one_line_on_stderr_and_exit_code_1(arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("bad.jsonl").write_text('{"a": 1}\nx\n')
    Path("few.jsonl").write_text(OTHER)
    assert show(*arguments) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith(f"chatmill: {message}")
    assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_a_dataset_is_shown_with_its_mask_before_anything_is_trained(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = [{"from": "bot", "value": "Welcome"}, {"from": "me", "value": "Hi"}, {"from": "bot", "value": "Ho"}]
    Path("a.json").write_text(json.dumps([{"talk": []}, {"talk": said}]))
    columns = "columns: {messages: talk, role: from, content: value}, roles: {user: me}, assistant_first: keep"
    Path("params.yaml").write_text(f"prepare: {{a: {{path: a.json, format: table, {columns}}}}}")
    assert main(["show", "--source", "a"]) == 0
    shown = capsys.readouterr()
    assert "no data/tokenizer here, so that each byte is a token" in shown.err
    assert "trained 3 " in shown.out and "ignored 9" in shown.out  # Ho and its end; <|bos|>, Welcome and its end
    for arguments, problem in (
        (["--source", "b"], "--source b: params.yaml has no prepare.b: expected one of a"),
        (["--source", "a", "--index", "2"], "--source a: no conversation 2: the dataset has fewer"),
    ):
        assert main(["show", *arguments]) == 1
        assert problem in capsys.readouterr().err
    Path("params.yaml").write_text("prepare: {a: {path: a.json, format: table, colums: {messages: talk}}}")
    assert main(["show", "--source", "a"]) == 1
    assert "unknown parameter prepare.a.colums" in capsys.readouterr().err
    Path("params.yaml").write_text("prepare: [a]")
    assert main(["show", "--source", "a"]) == 1
    assert "params.yaml: prepare: expected sections of sources, got ['a']" in capsys.readouterr().err
