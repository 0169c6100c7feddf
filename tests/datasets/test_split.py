import pytest

from chatmill.conversation import Message, render
from chatmill.datasets.split import question_group


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
