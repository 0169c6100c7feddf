import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chatmill.evaluation.bits_per_byte import bits_per_byte, nats_of_logits, sliding_windows, token_nats


def test_a_model_that_gives_every_byte_the_same_chance_needs_eight_bits():
    assert bits_per_byte(5 * math.log(256), 5) == pytest.approx(8)


@given(st.integers(0, 200), st.integers(2, 40), st.data())
def test_windows_score_every_token_once_and_read_a_context_at_most(length, context, data):
    stride, scored = data.draw(st.integers(1, context)), []
    for start, first, end in sliding_windows(length, context, stride):
        assert 0 <= start < first < end <= start + context + 1
        assert start == 0 or first - start > context - stride
        scored += range(first, end)
    assert scored == list(range(1, length))


def test_the_stride_decides_the_context_of_each_token():
    """The nats of a token are here the number of tokens that the model has read before it."""
    ids = np.arange(12)
    count = lambda windows: [np.arange(1.0, len(window)) for window in windows]  # noqa: E731
    assert token_nats([ids], 4, count, stride=4)[0].tolist() == [0, 1, 2, 3, 4, 1, 2, 3, 4, 2, 3, 4]
    assert token_nats([ids], 4, count)[0].tolist() == [0, 1, 2, 3, 4, 3, 4, 3, 4, 3, 4, 4]
    assert token_nats([ids], 4, count, stride=1)[0].tolist() == [0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4]


@given(st.lists(st.integers(1, 30), max_size=5))
def test_each_token_has_its_own_nats_whatever_the_window(lengths):
    conversations = [np.arange(100 * index, 100 * index + length) for index, length in enumerate(lengths)]
    nats = token_nats(conversations, 8, lambda read: [ids[1:].astype(float) for ids in read])
    for ids, found in zip(conversations, nats, strict=True):
        assert found.tolist() == [0, *ids[1:].tolist()]


def test_nats_of_logits_are_the_cross_entropy():
    generator = torch.Generator().manual_seed(0)
    logits = 30 * torch.randn(6, 11, generator=generator)
    ids = torch.randint(11, (6,), generator=generator)
    expected = torch.nn.functional.cross_entropy(logits[:-1].double(), ids[1:], reduction="none")
    np.testing.assert_allclose(nats_of_logits(logits.numpy(), ids.numpy()), expected.numpy(), rtol=1e-12)
    np.testing.assert_array_equal(*(nats_of_logits(one.numpy(), ids.numpy()) for one in (logits, logits[:-1])))
