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


CALL, OUTPUT, END = ANSWER[:3], ANSWER[3:6], "<|im_end|>"


@pytest.mark.parametrize(
    ("template", "train", "trained", "ignored"),
    [
        ("chatml", None, [*CALL, "It is 36.", END], OUTPUT),
        ("chatml", [None, None, False], [], [*ANSWER, END]),
        ("chatml", [True, True, False], ["Be brief.", END, "What is 12 * 3?", END], [*ANSWER, END]),
        ("markers", [True, True, False], [" ", "Be brief.", " ", "What is 12 * 3?"], [" ", *ANSWER, END]),
    ],
)
def test_answers_are_trained_unless_a_record_says_otherwise_and_tool_output_never_is(template, train, trained, ignored):
    segments = conversation_segments(CONVERSATION, template, train)
    assert [segment.text for segment in segments if segment.loss == LossKind.TRAINED] == trained
    assert [segment.text for segment in segments if segment.loss == LossKind.IGNORED] == [BOS, *ignored]


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
