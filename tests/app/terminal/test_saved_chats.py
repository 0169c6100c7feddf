import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.app.inputs import read_chat
from chatmill.app.terminal.terminal_chat import save_chat
from chatmill.conversation import CONTROL_TOKENS, Message, Part
from chatmill.datasets.formats.registry import read_dataset

TEXT = st.one_of(st.text(), st.sampled_from(CONTROL_TOKENS)).filter(str.strip)
TOOL = st.tuples(TEXT, st.text(), st.text()).map(
    lambda texts: (Part("text", texts[0]), Part("call", texts[1]), Part("output", texts[2]))
)
ANSWER = st.lists(TOOL, max_size=2).map(lambda tools: tuple(part for tool in tools for part in tool))
EXCHANGE = st.builds(
    lambda question, tools, text: [
        Message.from_text("user", question),
        Message("assistant", (*tools, Part("text", text))),
    ],
    TEXT,
    ANSWER,
    TEXT,
)
CONVERSATION = st.builds(
    lambda system, exchanges: [*system, *(message for exchange in exchanges for message in exchange)],
    st.lists(TEXT.map(lambda text: Message.from_text("system", text)), max_size=1),
    st.lists(EXCHANGE, min_size=1, max_size=3),
)
HI = [Message.from_text("user", "Hi"), Message.from_text("assistant", "Ho")]


@given(CONVERSATION)
def test_prepare_and_load_read_back_exactly_what_was_saved(tmp_path_factory, conversation):
    file = save_chat(conversation, str(tmp_path_factory.mktemp("saved") / "chat.jsonl"))
    (item,) = read_dataset(file, "messages", limit=None, seed=0)
    assert item.conversation == conversation == read_chat(file, 1)


def test_an_exchange_without_an_answer_is_left_out(tmp_path):
    file = save_chat([*HI, Message.from_text("user", "So?"), Message("assistant", ())], f"{tmp_path}/chat.jsonl")
    assert read_chat(file, 1) == HI


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("some text", "chat.txt: expected a turn to start with a marker such as Human:"),
        ("Human: Hi", "chat.txt: no answer"),
        ("Assistant: Hi", "chat.txt: role out of order"),
        ('{"messages": [{"role": "robot", "content": "x"}]}', "unknown role 'robot'"),
        (
            r'{"messages": [{"role": "user", "content": "\ud800"}, {"role": "assistant", "content": "x"}]}',
            "chat.txt: text holds half of a surrogate pair",
        ),
        (
            r'{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"function": '
            r'{"name": "calculator", "arguments": "{\"expression\": \"\\ud800\"}"}}]}]}',
            "chat.txt: text holds half of a surrogate pair",
        ),
    ],
)
def test_what_is_no_conversation_is_told_with_its_place(content, message, tmp_path):
    (tmp_path / "chat.txt").write_text(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_chat(tmp_path / "chat.txt", 1)
