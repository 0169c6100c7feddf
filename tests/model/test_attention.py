"""All ways to compute attention give the same result."""

import subprocess
import sys

import pytest
import torch

from chatmill.model.layers import attend, conversation_mask, find_segments
from support.paths import SOURCE
from support.segments import attend_to_each

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


@pytest.mark.parametrize("time", [3, 256, 600])
def test_a_compiled_step_attends_as_another_does(time):
    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    for found, expected in zip(attended(compiled, time), attended(attend, time), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_nobody_sees_another_conversation_or_what_comes_later():
    seen = conversation_mask(torch.tensor([[0, 0, 1, -1]]))[0, 0]
    assert seen.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize("time", [3, 256, 600])
def test_segments_are_the_conversations_of_the_mask(time, monkeypatch):
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", attend_to_each)
    for found, expected in zip(attended(attend, time, segments), attended(attend, time), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_attends_to_segments_as_to_the_mask():
    options = {"device": "cuda", "dtype": torch.bfloat16}
    for found, expected in zip(attended(attend, 600, segments, **options), attended(attend, 600), strict=True):
        torch.testing.assert_close(found.cpu().float(), expected, atol=5e-2, rtol=5e-2)


def test_segments_end_with_empty_ones_up_to_a_power_of_two():
    found = segments(torch.tensor([[0, 0, 1, -1], [0, 0, 0, 0]]))
    assert found.borders.tolist() == [0, 2, 3, 4, 8, 8, 8, 8, 8] and found.longest == 4


def test_the_compiler_is_imported_only_where_it_is_used():
    code = "import sys, chatmill.model.chat_model; print([name for name in sys.modules if 'torch._dynamo' in name])"
    result = subprocess.run([sys.executable, "-c", code], cwd=SOURCE, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
