from itertools import pairwise

import pytest

from chatmill.conversation.chatml import BOS, Message, Part, render
from chatmill.conversation.template import LossKind, conversation_segments, spans

CONVERSATION = [
    Message.from_text("system", "Be brief."),
    Message.from_text("user", "What is 12 * 3?"),
    Message("assistant", (Part("call", "12*3"), Part("output", "36"), Part("text", "It is 36."))),
]


def text_of(conversation, template, loss):
    return [segment.text for segment in conversation_segments(conversation, template) if segment.loss == loss]


def test_chatml_is_the_rendered_text_after_bos():
    assert "".join(segment.text for segment in conversation_segments(CONVERSATION)) == BOS + render(CONVERSATION)


def test_trained_are_the_assistants_text_its_calls_and_the_end_of_its_turn():
    trained = ["<|python_start|>", "12*3", "<|python_end|>", "It is 36.", "<|im_end|>"]
    assert text_of(CONVERSATION, "chatml", LossKind.TRAINED) == trained


def test_tool_output_and_bos_have_no_loss():
    ignored = ["<|bos|>", "<|output_start|>", "36", "<|output_end|>"]
    assert text_of(CONVERSATION, "chatml", LossKind.IGNORED) == ignored


def test_markers_as_they_stand():
    conversation = [Message.from_text("user", "Hi"), Message.from_text("assistant", "Ho")]
    assert "".join(segment.text for segment in conversation_segments(conversation, "markers")) == (
        "<|bos|>Human: Hi\n\nAssistant: Ho<|im_end|>\n\n"
    )


@pytest.mark.parametrize("template", ["chatml", "markers"])
def test_spans_join_text_between_control_tokens(template):
    groups = spans(conversation_segments(CONVERSATION, template))
    assert [segment for group in groups for segment in group] == conversation_segments(CONVERSATION, template)
    assert all(a[-1].control or b[0].control for a, b in pairwise(groups))


def test_header_and_content_are_one_span():
    texts = ["".join(segment.text for segment in group) for group in spans(conversation_segments(CONVERSATION[1:2]))]
    assert texts == ["<|bos|>", "<|im_start|>", "user\nWhat is 12 * 3?", "<|im_end|>", "\n"]
