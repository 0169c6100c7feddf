import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.conversation import Message, Part, Record, check_turns, escape, parse, render, unescape
from chatmill.record_files import read_records
from support.conversations import MESSAGES, TEXT


@given(st.lists(MESSAGES))
def test_parse_inverts_render(conversation):
    assert parse(render(conversation)) == conversation


@given(TEXT)
def test_unescape_inverts_escape_and_escaped_text_opens_no_token(text):
    assert unescape(escape(text)) == text
    assert "<|" not in escape(text)


def test_tool_use_stands_inside_the_turn():
    parts = (Part("call", "12*3"), Part("output", "36"), Part("text", "It is 36."))
    expected = "<|python_start|>12*3<|python_end|><|output_start|>36<|output_end|>It is 36."
    assert render([Message("assistant", parts)]) == f"<|im_start|>assistant\n{expected}<|im_end|>\n"


@pytest.mark.parametrize(
    "text",
    [
        "Hi",
        "<|im_start|>user\nHi<|im_end|>",
        "<|im_start|>user\nHi<|bos|><|im_end|>\n",
        "<|im_start|>assistant\n<|python_start|>1<|im_end|>\n",
        "<|im_start|>user\n<|python_start|>1<|python_end|><|im_end|>\n",
    ],
)
def test_text_that_render_does_not_write_is_refused(text):
    with pytest.raises(ValueError):
        parse(text)


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (["assistant", "user"], "message 1 is from assistant, expected user"),
        (["user", "user"], "message 2 is from user, expected assistant"),
        (["user"], "no answer"),
    ],
)
def test_roles_out_of_order_are_named(roles, message):
    with pytest.raises(ValueError, match=message):
        check_turns([Message.from_text(role, "x") for role in roles])


def test_records_are_read_back_and_a_bad_line_is_named(tmp_path):
    file = tmp_path / "chat.jsonl"
    record = Record("talk", "talk/1", render([Message.from_text("user", "naïve 🙂\u2028")]))
    file.write_text(record.to_json() * 2 + '{"text": 1}\n', encoding="utf-8")
    records = read_records(file)
    assert [next(records), next(records)] == [record, record]
    with pytest.raises(ValueError, match=r"chat\.jsonl:3: not a record"):
        next(records)


def turns(*roles):
    return [Message.from_text(role, "x") for role in roles]


def test_a_message_of_the_assistant_may_open_a_conversation_where_that_is_said():
    check_turns(turns("assistant", "user", "assistant"), opening=True)
    check_turns(turns("system", "assistant", "user", "assistant"), opening=True)
    check_turns(turns("user", "assistant"), opening=True)
    with pytest.raises(ValueError, match="role out of order: message 1 is from assistant"):
        check_turns(turns("assistant", "user", "assistant"))
    for roles in (["assistant"], ["assistant", "assistant", "user", "assistant"], ["assistant", "user"]):
        with pytest.raises(ValueError, match=r"no answer|role out of order"):
            check_turns(turns(*roles), opening=True)


def test_choices_of_trained_messages_are_read_back_and_left_out_where_there_are_none(tmp_path):
    text = render(turns("user", "assistant"))
    record = Record("talk", "1", text, train=[None, False])
    assert '"train": [null, false]' in record.to_json()
    assert "train" not in Record("talk", "1", text).to_json()
    (tmp_path / "chat.jsonl").write_text(record.to_json())
    assert list(read_records(tmp_path / "chat.jsonl")) == [record]


@pytest.mark.parametrize(
    ("text", "train", "message"),
    [
        (render(turns("user", "assistant")), [True], "one entry for each of 2 messages, got 1"),
        ("A document.", [True], "one entry for each of 0 messages, got 1"),
        (render(turns("user")), [1], "a list of true, false and null, got \\[1\\]"),
        (render(turns("user")), "no", "a list of true, false and null, got no"),
    ],
)
def test_choices_that_do_not_fit_the_messages_are_named_by_file_and_line(tmp_path, text, train, message):
    good = Record("talk", "1", text).to_json()
    (tmp_path / "chat.jsonl").write_text(good + json.dumps(json.loads(good) | {"train": train}) + "\n")
    with pytest.raises(ValueError, match=rf"chat\.jsonl:2: .*train: expected {message}"):
        list(read_records(tmp_path / "chat.jsonl"))
