import pytest

from chatmill.conversation import Message, render
from chatmill.datasets.split import (
    assign_split,
    column_group,
    document_group,
    question_group,
    question_of,
    split_position,
)


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
    assert question_of("skills/sums/1", "Once upon <a time") == document_group("Once upon <a time")


def test_groups_never_move():
    """The hashes are those of `b2sum -l 64` and `b2sum -l 48`."""
    assert question_group(rendered(*ASKED)) == "questions/78ea8c6fe4f3f42f"  # of "<|im_start|>user hi there"
    assert (column_group("7"), document_group("7")) == ("columns/e75017cace788f82", "documents/e75017cace788f82")
    assert (split_position("a/1"), split_position("test/a/1")) == (0xEC5C43C119D1 / 2**48, 0)


def test_a_side_has_the_positions_from_its_begin_to_before_its_end():
    position = split_position("a/1")
    sides = {(0, 1): "validation", (position, 0): "train", (0, position): "train", (position * 1.01, 0): "test"}
    for (test, validation), side in sides.items():
        assert assign_split("a/1", validation_share=validation, test_share=test) == side
    assert assign_split("train/a/1", validation_share=0, test_share=1) == "train"
