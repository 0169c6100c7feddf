"""All ways to compute attention give the same result."""

import pytest
import torch

from chatmill.model.attention import attend, conversation_mask

HEADS = {"queries": 4, "keys": 2, "values": 2}


def attended(function, time):
    """The attention of four conversations and padding, and the gradients of queries, keys and values."""
    random = torch.Generator().manual_seed(1)
    inputs = [torch.randn(2, heads, time, 16, generator=random).requires_grad_() for heads in HEADS.values()]
    conversations = torch.arange(time).mul(5).div(time, rounding_mode="floor").repeat(2, 1) - 1
    result = function(*inputs, conversation_mask(conversations))
    return result, *torch.autograd.grad(result.square().sum(), inputs)


@pytest.mark.parametrize("time", [3, 256, 600])
def test_a_compiled_step_attends_as_another_does(time):
    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    for found, expected in zip(attended(compiled, time), attended(attend, time), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_nobody_sees_another_conversation_or_what_comes_later():
    seen = conversation_mask(torch.tensor([[0, 0, 1, -1]]))[0, 0]
    assert seen.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
