import lzma
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chatmill.evaluation.bits_per_byte import baselines, bits_per_byte, nats_of_logits, sliding_windows, token_nats


def test_a_model_that_gives_every_byte_the_same_chance_needs_eight_bits():
    assert bits_per_byte(5 * math.log(256), 5) == pytest.approx(8)


def test_nothing_scored_has_no_bits_per_byte():
    assert bits_per_byte(0.0, 0) is None
    assert set(baselines(b"").values()) == {None}


def test_baselines_by_hand():
    text = b"abababac" * 4  # a 1/2, b 3/8, c 1/8
    entropy = 0.5 + 3 / 8 * math.log2(8 / 3) + 3 / 8
    found = baselines(text)
    assert found["uniform"] == 8
    assert found["order0"] == pytest.approx(entropy)
    assert found["xz"] == 8 * len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) / 32


def test_one_byte_again_and_again_has_no_entropy():
    assert str(baselines(b"aaaa")["order0"]) == "0.0"


@given(st.integers(0, 200), st.integers(2, 40))
def test_windows_score_every_token_once_with_half_a_context_before_it(length, context):
    scored = []
    for start, first, end in sliding_windows(length, context):
        assert 0 <= start < first < end <= start + context
        assert start == 0 or first - start >= context // 2
        scored += range(first, end)
    assert scored == list(range(1, length))


def test_a_text_that_fits_is_read_whole():
    assert list(sliding_windows(8, 8)) == [(0, 1, 8)]
    assert list(sliding_windows(13, 8)) == [(0, 1, 8), (4, 8, 12), (5, 12, 13)]


@given(st.lists(st.integers(1, 30), max_size=5))
def test_each_token_has_its_own_nats_whatever_the_window(lengths):
    conversations = [np.arange(100 * index, 100 * index + length) for index, length in enumerate(lengths)]
    nats = token_nats(conversations, 8, lambda read: [ids[1:].astype(float) for ids in read])
    for ids, found in zip(conversations, nats, strict=True):
        assert found.tolist() == [0, *ids[1:].tolist()]


def test_a_context_of_one_token_is_refused():
    with pytest.raises(ValueError, match="context: expected 2 tokens or more, got 1"):
        token_nats([np.arange(3)], 1, list)


def test_nats_of_logits_are_the_cross_entropy():
    generator = torch.Generator().manual_seed(0)
    logits = 30 * torch.randn(6, 11, generator=generator)
    ids = torch.randint(11, (6,), generator=generator)
    expected = torch.nn.functional.cross_entropy(logits[:-1].double(), ids[1:], reduction="none")
    np.testing.assert_allclose(nats_of_logits(logits.numpy(), ids.numpy()), expected.numpy(), rtol=1e-12)
