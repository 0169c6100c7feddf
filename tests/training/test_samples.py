import torch

from chatmill.training.samples import sample_answers
from support.packed import encode
from support.tiny import CONFIG, VOCABULARY, random_model


def sampled(talks, number=3):
    torch.manual_seed(0)
    return [question for question, _ in sample_answers(random_model(CONFIG), encode(talks), VOCABULARY, number)]


def test_the_first_questions_are_answered():
    assert sampled([["Hi?", "a"], ["Ho?", "b"]], 1) == ["Hi?"]


def test_documents_ask_nothing():
    assert sampled(["Once", ["Hi?", "a"], "upon", ["Ho?", "b"]], 2) == ["Hi?", "Ho?"]
    assert sampled(["Once", "upon"]) == []
