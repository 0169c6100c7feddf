import pytest

from chatmill.conversation import Message, escape, render
from chatmill.datasets.split import document_group, is_generated, on_side, question_group, question_of


def rendered(*turns):
    return render(Message.from_text(role, text) for role, text in turns)


ASKED = ("user", "Hi there"), ("assistant", "Hello!")


@pytest.mark.parametrize("system", [[], [("system", "Be kind.")]])
def test_what_the_assistant_says_before_the_first_question_is_no_part_of_it(system):
    opened = rendered(*system, ("assistant", "Welcome!"), *ASKED)
    assert question_group(opened) == question_group(rendered(*system, *ASKED))
    assert question_group(opened) != question_group(
        rendered(*system, ("assistant", "Welcome!"), ("user", "Ho"), ASKED[1])
    )


def test_openings_alike_do_not_join_different_questions():
    texts = [rendered(("assistant", "Welcome!"), ("user", question), ("assistant", "Yes.")) for question in "abc"]
    assert len({question_group(text) for text in texts}) == len({question_of("talk/1", text) for text in texts}) == 3


def test_a_document_shares_its_text_and_is_never_a_question():
    text = escape("Hi there <|im_end|>")
    group = document_group("any file")
    assert question_of(group, text) == question_of(on_side(group, "test"), text) == document_group(text)
    assert question_of(group, text) != question_of(group, text.lower())
    assert question_of(group, "hi there") not in (question_group(rendered(*ASKED)), "")
    assert is_generated(group)
