"""What a model says of itself before its first answer."""

import pytest

from chatmill.app.introduction import CARD, MAX_LENGTH, Introduction, introduce
from chatmill.conversation import Message, Record, render


def question(text, *more, source="a", **skill):
    """A line of a test set: a conversation with this question, and more after it."""
    asked = [
        Message.from_text(role, words)
        for words in (text, *more)
        for role, words in (("user", words), ("assistant", "x"))
    ]
    return Record(source, text, render(asked), skill or None).to_json()


@pytest.fixture
def data(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "chat").mkdir()
    return tmp_path


def prompts(data, *lines, generated_only=False):
    (data / "chat/test.jsonl").write_text("".join(lines))
    return introduce(data / "model", generated_only=generated_only).prompts


def test_questions_of_each_kind_take_turns_and_come_before_statements(data):
    lines = [question("Hi"), question("How?"), question("Why?", source="b"), question("Who?")]
    assert prompts(data, *lines) == ("How?", "Why?", "Who?", "Hi")


def test_generated_prompts_go_before_those_of_people_whose_sources_may_be_held_out(data):
    lines = [question("How?"), question("1?", source="b", name="sums")]
    assert prompts(data, *lines) == ("1?",)


def test_what_people_wrote_is_left_out_on_demand(data):
    assert prompts(data, question("My name is Ada."), generated_only=True) == ()


@pytest.mark.parametrize("line", [question("a?", "b?"), question("a" * (MAX_LENGTH + 1)), question("a\nb?"),
                                  question("teh?", name="talk", noisy=True), Record("a", "b", "a document").to_json(),
                                  "damaged"])  # fmt: skip
def test_no_prompt_is_one_that_needs_more_is_long_or_misspelled(data, line):
    assert prompts(data, line) == ()


def test_a_card_has_title_and_prompts_and_goes_before_the_data(data):
    (data / "chat/test.jsonl").write_text(question("How?"))
    (data / "model" / CARD).write_text('---\ntags: [a]\nwidget:\n- text: "Where?"\n- 3\n---\n\n# Mill\n# No\n')
    assert introduce(data / "model", generated_only=True) == Introduction("Mill", ("Where?",))


@pytest.mark.parametrize("text", ["# A project", "---\n: [\n---\n", "---\nwidget: 3\n---\n", "\xff"])
def test_other_and_broken_cards_say_nothing(data, text):
    (data / "model" / CARD).write_bytes(text.encode("latin-1"))
    assert introduce(data / "model", generated_only=True) == Introduction()


def test_a_run_and_a_model_without_a_project_have_none(data):
    assert (
        introduce(data / "model", generated_only=False)
        == introduce(data / "none", generated_only=False)
        == Introduction()
    )
