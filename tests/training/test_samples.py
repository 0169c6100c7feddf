import pytest
import torch

from chatmill.conversation import Message, Record, render
from chatmill.training.model_folder import sample_answers
from support.packed import encode
from support.tiny import CONFIG, VOCABULARY, random_model


def sampled(talks, number=3, template="chatml"):
    torch.manual_seed(0)
    split = encode(talks, template)
    return [question for question, _ in sample_answers(random_model(CONFIG), split, VOCABULARY, number)]


def test_the_first_questions_are_answered():
    assert sampled([["Hi?", "a"], ["Ho?", "b"]], 1) == ["Hi?"]


TEXTS = ["You are terse.", "Hi?", "a", "Ho?", "b"]
ROLES = ["system", "user", "assistant", "user", "assistant"]


@pytest.mark.parametrize(
    ("train", "questions"),
    [
        ([None] * 5, ["Hi?"]),
        ([None, True, None, True, None], ["Hi?"]),
        ([True, True, None, None, None], ["Hi?"]),
        ([None, True, False, None, None], ["Ho?"]),
        ([None, True, False, True, False], []),
    ],
)
def test_the_question_is_the_message_before_the_first_trained_answer(train, questions):
    text = render(map(Message.from_text, ROLES, TEXTS))
    assert sampled([Record("talk", "1", text, train=train)]) == questions
