import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.conversation import Message, Part, Record, check_turns, escape, parse, render, text_hash, unescape
from chatmill.record_files import read_records
from support.conversations import MESSAGES, TEXT


@given(st.lists(MESSAGES))
def test_parse_inverts_render(conversation):
    assert parse(render(conversation)) == conversation


@given(TEXT)
def test_unescape_inverts_escape_and_escaped_text_opens_no_token(text):
    assert unescape(escape(text)) == text
    assert "<|" not in escape(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Hi" * 40, f"not a rendered conversation at character 0: '{'Hi' * 30}'"),
        ("<|im_start|>user\nHi<|im_end|>\nHo" + "x" * 80, f"at character 30: 'Ho{'x' * 58}'"),
        ("<|im_start|>user\nHi<|bos|><|im_end|>\n", "misplaced control token: '<|bos|>'"),
        (f"<|im_start|>user\n<|bos|>{'Hi' * 40}<|im_end|>\n", f"misplaced control token: '<|bos|>{'Hi' * 26}H'"),
        ("<|im_start|>assistant\n<|python_start|>1<|im_end|>\n", "misplaced control token: '<|python_start|>1'"),
        ("<|im_start|>user\n<|python_start|>1<|python_end|><|im_end|>\n", "tool call in a user message: only the assi"),
        ("<|im_start|>robot\nHi<|im_end|>\n", "unknown role 'robot': expected one of system, user, assistant"),
    ],
)
def test_text_that_render_does_not_write_is_refused(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(text)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([Part("text", "")], "text parts of a message must not be empty or adjacent: join them"),
        ([Part("text", "a"), Part("text", "b")], "text parts of a message must not be empty or adjacent: join them"),
        ([Part("output", "36")], "tool output without a call before it"),
        ([Part("call", "1"), Part("output", "1"), Part("output", "1")], "tool output without a call before it"),
    ],
)
def test_parts_that_no_text_can_tell_apart_or_that_no_call_precedes_are_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        Message("assistant", tuple(parts))


def turns(*roles, text="x"):
    """Messages as they are read from a file."""
    return parse(render([Message.from_text(role, text) for role in roles]))


@pytest.mark.parametrize(
    ("conversation", "opening", "message"),
    [
        (turns("assistant", "user", "assistant"), False, "message 1 is from assistant, expected user"),
        (turns("system", "user", "user"), False, "message 2 is from user, expected assistant"),
        (turns("user", "assistant", "assistant"), True, "message 3 is from assistant, expected user"),
        (turns("assistant", "assistant", "user"), True, "role out of order: message 1 is from assistant"),
        (turns("user"), False, "no answer: expected a message of the user and one of the assistant"),
        (turns("assistant", "user"), True, "no answer"),
        ([], True, "no answer"),
        (turns("user", "assistant") + turns("user", text=" \n"), False, "empty turn of user"),
    ],
)
def test_roles_out_of_order_and_blank_messages_are_named(conversation, opening, message):
    with pytest.raises(ValueError, match=message):
        check_turns(conversation, opening=opening)


def test_a_message_of_the_assistant_may_open_a_conversation_where_that_is_said():
    check_turns(turns("assistant", "user", "assistant"), opening=True)
    check_turns(turns("system", "assistant", "user", "assistant"), opening=True)
    check_turns(turns("user", "assistant", "user", "assistant"), opening=True)


def test_records_are_read_back_and_a_bad_line_is_named(tmp_path):
    file, text = tmp_path / "chat.jsonl", render(turns("user", "assistant", text="naïve 🙂\u2028"))
    plain, chosen = Record("talk", "talk/1", text), Record("talk", "talk/1", text, {"kind": "a"}, [None, False])
    file.write_text(plain.to_json() + chosen.to_json() + '{"text": 1}\n', encoding="utf-8")
    assert (
        "train" not in plain.to_json() and "naïve 🙂" in plain.to_json() and '"train":[null,false]' in chosen.to_json()
    )
    records = read_records(file)
    assert [next(records), next(records)] == [plain, chosen] and text_hash("naïve") == 0xBEF26892EEEB4CDC  # b2sum's
    with pytest.raises(ValueError, match=r"chat\.jsonl:3: not a record of a conversation: "):
        next(records)


@pytest.mark.parametrize(
    ("text", "train", "message"),
    [
        (render(turns("user", "assistant")), [True], "one entry for each of 2 messages, got 1"),
        ("A document.", [True], "one entry for each of 0 messages, got 1"),
        (render(turns("user")), [1], "a list of true, false and null, got \\[1\\]"),
        (render(turns("user")), "no" * 40, f"a list of true, false and null, got {'no' * 30}$"),
    ],
)
def test_choices_that_do_not_fit_the_messages_are_named_by_file_and_line(tmp_path, text, train, message):
    good = Record("talk", "1", text).to_json()
    (tmp_path / "chat.jsonl").write_text(good + json.dumps(json.loads(good) | {"train": train}) + "\n")
    with pytest.raises(ValueError, match=rf"chat\.jsonl:2: .*train: expected {message}"):
        list(read_records(tmp_path / "chat.jsonl"))
