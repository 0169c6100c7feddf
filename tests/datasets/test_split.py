import pytest

from chatmill.conversation import Message, render
from chatmill.datasets.split import column_group, question_group, question_of


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


def test_a_declaration_of_tools_is_no_part_of_it():
    declared, kind = (rendered(("system", text), *ASKED) for text in ("Tools: calculator\nBe kind.", "Be kind."))
    assert question_group(declared) == question_group(kind)


def test_what_is_shared_follows_from_who_named_the_group():
    longer = rendered(("user", "Ho"), ("assistant", "Ha"), *ASKED)
    assert question_of("skills/sums/1", longer) == question_group(rendered(*ASKED))
    assert question_of(column_group("7"), longer) == question_group(longer) != question_group(rendered(*ASKED))
    assert question_of("test/questions/2f", longer) == "questions/2f"
