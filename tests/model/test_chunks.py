from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chatmill.checkpoints.configuration import Chunking
from chatmill.model.layers import conversation_mask
from chatmill.soft_tokenizer.chunks import ChunkedDecoder
from support.tiny import CONFIG

SMALL = Chunking(rate=3.0, width=48, layers=2, window=8)
TIME = 40  # five windows, so that a single call reads them in blocks


def random_decoder(chunking=SMALL):
    """Random weights everywhere, so that no term keeps its initial zero or one."""
    generator = torch.Generator().manual_seed(0)
    decoder = ChunkedDecoder(replace(CONFIG, chunking=chunking))
    for weight in decoder.parameters():
        noise = torch.randn(weight.shape, generator=generator)
        weight.data = 1 + 0.1 * noise if weight.ndim == 1 else noise / weight.shape[1] ** 0.5
    return decoder.eval()


def random_tokens(batch, time=TIME):
    """(B, T) ids."""
    return torch.randint(CONFIG.vocab_size, (batch, time), generator=torch.Generator().manual_seed(time))


def others(ids):
    """(B, T) ids, each another one than before."""
    return (ids + 1) % CONFIG.vocab_size


def rotary_at(positions):
    angles = positions[:, None, :, None] * 10.0 ** -torch.arange(CONFIG.head_dim // 2)
    return angles.cos(), angles.sin()


def decode(decoder, ids, rotary, mask=None, cache=None, *, last_only=False):
    return decoder(ids, decoder.embed_tokens.weight, rotary, mask, cache, last_only=last_only)


def boundaries(decoder, ids, rotary, mask=None):
    return decoder.boundaries(ids, decoder.embed_tokens.weight, rotary, mask)


def read(decoder, ids, cache=None):
    """The decoder's output for one conversation in each row, or for its next tokens."""
    past, time = cache.length if cache else 0, ids.shape[1]
    mask = torch.ones(1, 1, time, past + time, dtype=torch.bool).tril(past) if past else None
    return decode(decoder, ids, rotary_at(torch.arange(past, past + time)[None]), mask, cache)[0]


def read_packed(decoder, ids, lengths):
    """The same for a row with several conversations of these lengths."""
    conversations = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    mask = conversation_mask(conversations)
    output, routed = decode(decoder, ids, rotary_at(positions), mask)
    return output, routed, boundaries(decoder, ids, rotary_at(positions), mask)


def near(first, second):
    torch.testing.assert_close(first, second, atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module", params=["learned", "autoencoder", "fixed"])
def decoder(request):
    return random_decoder(replace(SMALL, boundaries=request.param)).requires_grad_(False)


@pytest.mark.parametrize("place", [0, 13, 38])
def test_a_later_token_changes_nothing_before_it(decoder, place):
    ids = random_tokens(2)
    changed = torch.cat([ids[:, : place + 1], others(ids[:, place + 1 :])], dim=1)
    torch.testing.assert_close(read(decoder, ids)[:, : place + 1], read(decoder, changed)[:, : place + 1])
    assert not torch.allclose(read(decoder, ids)[:, place + 1], read(decoder, changed)[:, place + 1])


@given(st.lists(st.integers(1, 9), min_size=1), st.integers(1, 3))
def test_a_cache_gives_what_the_whole_gives_however_it_is_split(decoder, parts, rows):
    ids, cache = random_tokens(rows), decoder.new_cache(rows, TIME)
    ends = [end for end in torch.tensor(parts).cumsum(0).tolist() if end < TIME]
    output = [read(decoder, part, cache) for part in ids.tensor_split(ends, dim=1)]
    assert cache.length == TIME
    near(torch.cat(output, dim=1), read(decoder, ids))


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=6), st.integers(1, 2))
def test_a_rewound_cache_forgets(decoder, turns, rows):
    cache, ids, length = decoder.new_cache(rows, 100), random_tokens(rows), 0
    for read_more, rewind in turns:
        read(decoder, others(random_tokens(rows, read_more + 1)), cache)
        cache.length = min(length, rewind)
        read(decoder, ids[:, cache.length : cache.length + 1], cache)
        length = cache.length
    near(read(decoder, ids[:, length:], cache), read(decoder, ids)[:, length:])


def test_packed_conversations_are_read_as_if_alone(decoder):
    first, second, third = random_tokens(1, 5), random_tokens(1, 24), random_tokens(1, 11)
    output, _, starts = read_packed(decoder, torch.cat([first, second, third], dim=1), [5, 24, 11])
    near(output, torch.cat([read(decoder, ids) for ids in (first, second, third)], dim=1))
    assert starts[0, [0, 5, 29]].all() and not starts.all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rate": 1.0}, "rate = 1.0"),
        ({"width": 47}, "width = 47 is odd"),
        ({"ngrams": ()}, r"ngrams = \(\): expected lengths from 1 to 32 tokens"),
        ({"slots": 0}, "slots = 0: expected 1 row or more for n-grams"),
        ({"ngrams": (2, 0)}, r"ngrams = \(2, 0\)"),
    ],
)
def test_impossible_chunks_are_refused(change, message):
    with pytest.raises(ValueError, match=f"chunking.{message}"):
        replace(SMALL, **change)
