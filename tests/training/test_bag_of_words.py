import numpy as np
import pytest
import torch

from chatmill.checkpoints.configuration import ModelConfig
from chatmill.conversation import LossKind
from chatmill.model.chat_model import Answers, ChatModel, initialise
from chatmill.training.trainer import find_answers

P, T, N = LossKind.PROMPT, LossKind.TRAINED, LossKind.IGNORED


@pytest.mark.parametrize(
    ("loss", "begins", "of_targets"),
    [
        pytest.param([[P, T, T, P, P, T]], [0, 1, 5, 0], [[0, 1, 1, 0, 0, 2]], id="two answers"),
        pytest.param([[T, T, N, P, T]], [0, 4], [[0, 0, 0, 0, 1]], id="a document is no answer"),
        pytest.param([[P, T], [T, P]], [0, 1], [[0, 1], [0, 0]], id="rows are apart"),
        pytest.param([[P, T, N, T]], [0, 1], [[0, 1, 0, 0]], id="after what is ignored"),
        pytest.param([[P, N]], [0], [[0, 0]], id="none"),
    ],
)
def test_answers_begin_after_prompts(loss, begins, of_targets):
    found_begins, found = find_answers(np.array(loss))
    assert found_begins.tolist() == begins
    assert found.tolist() == of_targets


def test_the_bag_is_learnt_where_an_answer_begins():
    model = ChatModel(ModelConfig.from_depth(1, vocab_size=64, context=16))
    initialise(model, 1)
    model.bag_of_words = 1.0
    ids = torch.tensor([[1, 2, 3, 10, 11, 12, 13, 4]])
    targets = torch.tensor([[2, 3, 10, 11, 12, 13, 4, 0]])
    loss = np.array([[P, P, T, T, T, T, T, N]])
    answers = Answers(*map(torch.from_numpy, find_answers(loss)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(80):
        nats, bag = model.nats(ids, None, None, targets, None, answers)
        optimizer.zero_grad()
        (nats * torch.tensor([[0, 0, 1, 1, 1, 1, 1, 0]]) + bag).sum().backward()
        optimizer.step()
    nats, bag = nats.detach(), bag.detach()
    assert bag[0, :2].tolist() == [0, 0] and bag[0, 7] == 0  # of the prompt, and of what is ignored
    assert bag[0, 2:7].exp() == pytest.approx([5] * 5, rel=0.3)  # five tokens, equally likely
    assert nats[0, 2:7].exp() == pytest.approx([1] * 5, rel=0.3)  # and in their order
