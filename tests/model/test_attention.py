"""All ways to compute attention give the same result."""

import pytest
import torch

from chatmill.model.layers import attend, conversation_mask, find_segments

HEADS = {"queries": 4, "keys": 2, "values": 2}


def attended(function, time, visible=conversation_mask, device="cpu", dtype=torch.float32):
    """The attention of four conversations and padding, and the gradients of queries, keys and values."""
    random = torch.Generator().manual_seed(1)
    inputs = [torch.randn(2, heads, time, 16, generator=random) for heads in HEADS.values()]
    inputs = [each.to(device, dtype).requires_grad_() for each in inputs]
    conversations = torch.arange(time).mul(5).div(time, rounding_mode="floor").repeat(2, 1) - 1
    result = function(*inputs, visible(conversations).to(device))
    return result, *torch.autograd.grad(result.square().sum(), inputs)


def segments(conversations):
    return find_segments(conversations.numpy())


def test_nobody_sees_another_conversation_or_what_comes_later():
    seen = conversation_mask(torch.tensor([[0, 0, 1, -1]]))[0, 0]
    assert seen.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def test_a_cpu_attends_to_segments_as_to_the_mask():
    expected = attended(attend, 60)
    with torch.autocast("cpu", torch.bfloat16):  # all the same in float32
        of_segments = attended(attend, 60, segments)
    for found, one in zip(of_segments, expected, strict=True):
        torch.testing.assert_close(found, one)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_attends_to_segments_as_to_the_mask():
    options = {"device": "cuda", "dtype": torch.bfloat16}
    for found, expected in zip(attended(attend, 600, segments, **options), attended(attend, 600), strict=True):
        torch.testing.assert_close(found.cpu().float(), expected, atol=5e-2, rtol=5e-2)
