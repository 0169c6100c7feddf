import copy
import math
import operator
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chatmill.model.chat_model import initialise
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


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=3), st.sampled_from([*Kind])), min_size=1, max_size=12))
def test_no_two_tokens_are_spelled_alike_and_none_goes_on_from_another(entries):
    rows = [tuple(s for s in row if s != NO_SYMBOL) for row in spell_vocabulary(vocabulary(entries)).tolist()]
    rows = [row for row in rows if row]
    assert len(rows) == sum(kind != UNUSED for _, kind in entries)
    assert not any(i != j and a == b[: len(a)] for i, a in enumerate(rows) for j, b in enumerate(rows))


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


def test_a_loaded_head_spells_like_the_saved_one(head):
    hidden = random_hidden(2)
    other = ByteHead(replace(CONFIG, vocab_size=len(ENTRIES), byte_head=head.shape)).eval()
    assert other.logits(hidden).isneginf().all()
    other.load_state_dict(head.state_dict())
    torch.testing.assert_close(other.logits(hidden), head.logits(hidden), atol=0, rtol=0)


WORDS = [bytes(word) for word in product(b"abcdef", repeat=3)]
HELD_OUT = WORDS[5::9]
TAUGHT = [word for word in WORDS if word not in HELD_OUT]


def meant(words):
    """(N, C): hidden states that encode the position of each letter."""
    letters = torch.randn(3, 6, CONFIG.hidden_size, generator=torch.Generator().manual_seed(2))
    return torch.stack([sum(letters[i, letter - ord("a")] for i, letter in enumerate(word)) for word in words])


def taught(hidden):
    """A head that was trained on the taught words with their hidden states, and its final nats per word."""
    head = new_head([(word, NORMAL) for word in TAUGHT], width=32, features=64, slots=1).train()
    initialise(head, 1)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.01)
    for _ in range(80):
        nats = head.nats(hidden[None], torch.arange(len(TAUGHT))[None]).mean()
        nats.backward()
        optimizer.step()
        optimizer.zero_grad()
    return head.eval(), nats.item()


def test_words_outside_the_vocabulary_are_spelled():
    head, nats = taught(meant(TAUGHT))
    assert nats < 0.05
    spelled = [head.generate_token(hidden, 9) for hidden in meant(HELD_OUT)]
    assert sum(map(operator.eq, spelled, HELD_OUT)) > 0.6 * len(HELD_OUT)  # by chance one in 216


def test_gradients_are_the_same_each_time_where_that_is_asked_for(head):
    trained = copy.deepcopy(head).train().requires_grad_(True)
    ids = torch.tensor(MADE * 50)[None]
    gradients = []
    for _ in range(2):
        trained.nats(random_hidden(1, ids.shape[1]), ids).sum().backward()
        gradients.append([weight.grad for weight in trained.parameters()])
        trained.zero_grad()
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))
