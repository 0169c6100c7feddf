import math
from dataclasses import replace

import pytest
import torch

from chatmill.soft_tokenizer.byte_head import FIRST_END_MARK, NO_SYMBOL, ByteHead, byte_head_shape, spell_vocabulary
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary
from support.tiny import CONFIG

NORMAL, CONTINUATION, FALLBACK, CONTROL = Kind.NORMAL, Kind.CONTINUATION, Kind.FALLBACK, Kind.CONTROL
UNUSED = Kind.UNUSED
ENTRIES = [
    (b"a", NORMAL),
    (b"b", NORMAL),
    (b"ab", NORMAL),
    (b"ab", CONTINUATION),
    (b"abba", NORMAL),
    (b"a", FALLBACK),
    (b"<|bos|>", CONTROL),
    (b"nothing", UNUSED),
    (b"<|end|>", CONTROL),
]
BOS, NEVER, STOP = 6, 7, 8
MADE = [i for i in range(len(ENTRIES)) if i != NEVER]


def vocabulary(entries):
    tokens, kinds = zip(*entries, strict=True)
    return Vocabulary("any", "merge", None, tokens, kinds, (0.0,) * len(tokens))


def new_head(entries, **shape):
    """An untrained head whose weights are large enough to distinguish prefixes."""
    known = vocabulary(entries)
    head = ByteHead(replace(CONFIG, vocab_size=len(entries), byte_head=replace(byte_head_shape(known), **shape)))
    head.set_spelling(spell_vocabulary(known))
    torch.manual_seed(0)
    for weight in head.parameters():
        torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
    return head.eval()


@pytest.fixture(scope="module")
def head():
    return new_head(ENTRIES, width=32, features=16, slots=64).requires_grad_(False)


def random_hidden(*shape):
    return torch.randn(*shape, CONFIG.hidden_size, generator=torch.Generator().manual_seed(1))


def chances(head, hidden, written):
    """Log-probabilities (S,) of the symbol after those written, by the definition, one prefix at a time."""
    path = [head.start] * (head.shape.longest - len(written)) + list(written)
    return head.out_proj(
        gated_by_hand(head.of_hidden(hidden) + head.embed_prefixes(torch.tensor([path]))[0])
    ).log_softmax(0)


def gated_by_hand(x):
    half = len(x) // 2
    return x[:half] * torch.sigmoid(x[:half]) * x[half:]


def symbols_of(head, token):
    return [symbol for symbol in head.spelled[token].tolist() if symbol != NO_SYMBOL]


def nats_of(head, hidden, symbols):
    return -sum(chances(head, hidden, symbols[:i])[symbol].item() for i, symbol in enumerate(symbols))


def test_tokens_are_bytes_and_an_end_and_others_a_symbol_of_their_own():
    spelled = spell_vocabulary(
        vocabulary([(b"ab", NORMAL), (b"<|bos|>", CONTROL), (b"gap", UNUSED), (b"c", NORMAL)])
    ).tolist()
    assert spelled == [
        [97, 98, FIRST_END_MARK],
        [FIRST_END_MARK + 1] + [NO_SYMBOL] * 2,
        [NO_SYMBOL] * 3,
        [99, FIRST_END_MARK, NO_SYMBOL],
    ]


def test_nats_are_those_of_one_symbol_after_another(head):
    hidden, targets = random_hidden(2, 8), torch.tensor([MADE, MADE[::-1]])
    expected = [
        [nats_of(head, state, symbols_of(head, token)) for state, token in zip(*row, strict=True)]
        for row in zip(hidden, targets.tolist(), strict=True)
    ]
    torch.testing.assert_close(head.nats(hidden, targets), torch.tensor(expected), atol=1e-4, rtol=1e-4)


def test_logits_are_minus_the_nats_of_every_token(head):
    hidden, targets = random_hidden(5), torch.arange(len(ENTRIES)).expand(5, -1)
    nats = head.nats(hidden[:, None].expand(-1, len(ENTRIES), -1), targets)
    torch.testing.assert_close(head.logits(hidden), -nats, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(head.logits(hidden[None]), -nats[None], atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_all_tokens_and_all_other_spellings_are_together_certain(head):
    (hidden,), tokens = random_hidden(1), [symbols_of(head, i) for i in MADE]
    prefixes = {tuple(symbols[:i]) for symbols in tokens for i in range(len(symbols))}
    ways = [[*prefix, symbol] for prefix in prefixes for symbol in range(head.shape.symbols)]
    lost = [way for way in ways if way not in tokens and tuple(way) not in prefixes]
    total = head.logits(hidden[None]).exp().sum().item()
    assert 0 < total < 1
    assert total + sum(math.exp(-nats_of(head, hidden, way)) for way in lost) == pytest.approx(1, abs=1e-4)
