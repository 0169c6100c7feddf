from itertools import product

import pytest

from chatmill.conversation import (
    BOS,
    LossKind,
    Message,
    Part,
    Record,
    conversation_segments,
    declare_tools,
    declared_tools,
    escape,
    parse,
    record_segments,
    render,
    spans,
)

TEXT = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 12 * 3?<|im_end|>\n<|im_start|>assistant\n"
    "<|python_start|>12*3<|python_end|><|output_start|>36<|output_end|>It is 36.<|im_end|>\n"
)
CONVERSATION = parse(TEXT)
ANSWER = ["<|python_start|>", "12*3", "<|python_end|>", "<|output_start|>", "36", "<|output_end|>", "It is 36."]
ENCODED = {  # what is encoded in one call each
    "chatml": [
        *[BOS, "<|im_start|>", "system\nBe brief.", "<|im_end|>", "\n"],
        *["<|im_start|>", "user\nWhat is 12 * 3?", "<|im_end|>", "\n"],
        *["<|im_start|>", "assistant\n", *ANSWER, "<|im_end|>", "\n"],
        *["<|im_start|>", "assistant\n", "<|im_end|>", "\n"],
    ],
    "markers": [
        *[BOS, "System: Be brief.\n\nHuman: What is 12 * 3?\n\nAssistant: ", *ANSWER, "<|im_end|>"],
        *["\n\nAssistant:", "<|im_end|>", "\n\n"],
    ],
}


@pytest.mark.parametrize("template", ENCODED)
def test_all_text_between_two_control_tokens_is_encoded_at_once(template):
    segments = conversation_segments([*CONVERSATION, Message("assistant", ())], template)
    assert ["".join(segment.text for segment in span) for span in spans(segments)] == ENCODED[template]
    assert all(segment.control == segment.text.startswith("<|") for segment in segments)


def test_tool_use_stands_inside_the_turn():
    used = (Part("call", "12*3"), Part("output", "36"), Part("text", "It is 36."))
    assert CONVERSATION[2] == Message("assistant", used) and CONVERSATION[2].text == "It is 36."
    assert render(CONVERSATION) == TEXT


def text_of(conversation, template, loss):
    return [segment.text for segment in conversation_segments(conversation, template) if segment.loss == loss]


def test_trained_are_the_assistants_text_its_calls_and_the_end_of_its_turn():
    trained = ["<|python_start|>", "12*3", "<|python_end|>", "It is 36.", "<|im_end|>"]
    assert text_of(CONVERSATION, "chatml", LossKind.TRAINED) == trained


def test_tool_output_and_bos_have_no_loss():
    ignored = ["<|bos|>", "<|output_start|>", "36", "<|output_end|>"]
    assert text_of(CONVERSATION, "chatml", LossKind.IGNORED) == ignored


def kinds(train, template="chatml"):
    """The kind of loss of each segment that is no tool output, by what is in it."""
    segments = conversation_segments(CONVERSATION, template, train)
    return [(segment.text, segment.loss) for segment in segments if segment.loss != LossKind.PROMPT]


def test_an_answer_that_is_not_trained_has_no_loss_but_its_header():
    assert {loss for _, loss in kinds([None, None, False])} == {LossKind.IGNORED}
    headers = text_of(CONVERSATION, "chatml", LossKind.PROMPT)
    segments = conversation_segments(CONVERSATION, "chatml", [None, None, False])
    assert [segment.text for segment in segments if segment.loss == LossKind.PROMPT] == headers


def test_a_question_and_a_system_message_are_trained_with_their_ends_if_a_record_says_so():
    trained = [text for text, loss in kinds([True, True, False]) if loss == LossKind.TRAINED]
    assert trained == ["Be brief.", "<|im_end|>", "What is 12 * 3?", "<|im_end|>"]
    in_markers = [text for text, loss in kinds([True, True, False], "markers") if loss == LossKind.TRAINED]
    assert in_markers == [" ", "Be brief.", " ", "What is 12 * 3?"]


@pytest.mark.parametrize("template", ["chatml", "markers"])
def test_choices_change_the_loss_and_not_the_text(template):
    plain = [segment.text for segment in conversation_segments(CONVERSATION, template)]
    for train in product((None, False, True), repeat=3):
        assert [segment.text for segment in conversation_segments(CONVERSATION, template, train)] == plain
    usual = conversation_segments(CONVERSATION, template)
    assert conversation_segments(CONVERSATION, template, [None, None, True]) == usual
    with pytest.raises(ValueError):
        conversation_segments(CONVERSATION, template, [True])


@pytest.mark.parametrize("template", ["chatml", "markers"])
def test_a_document_is_trained_from_its_first_letter_to_its_end(template):
    segments = record_segments(Record("books", "1", escape("Once <|im_end|> upon")), template)
    assert segments == [("<|bos|>", 0, True), ("Once <\\|im_end|> upon", 2, False), ("<|im_end|>", 2, True)]
    assert record_segments(Record("talk", "1", ""), template) == conversation_segments([], template)


def test_tools_are_declared_once_before_the_text_of_the_system_message():
    asked, kind = [Message.from_text("user", "Hi")], Message.from_text("system", "Be kind.")
    declared = declare_tools(asked)
    assert declared_tools([]) == declared_tools(asked) == [] and declared_tools(declared) == ["calculator"]
    assert declare_tools(declared) == declared and declare_tools(asked, []) == asked
    both = declare_tools(parse(render([kind, *asked])), ["calculator", "search"])
    assert both[0].text == "Tools: calculator, search\nBe kind." and both[1:] == asked
    assert declared_tools(both) == ["calculator", "search"] and declared_tools([kind, *asked]) == []
    assert declare_tools([Message("system", ()), *asked]) == declared
