import copy
import math
import operator
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chatmill.model.chat_model import ChatModel, initialise
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


def test_tokens_of_the_same_bytes_have_different_ends(head):
    assert [symbols_of(head, i) for i in (0, 5, 2, 3)] == [[97, 256], [97, 257], [97, 98, 256], [97, 98, 257]]
    assert symbols_of(head, BOS) == [258] and symbols_of(head, STOP) == [259]


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=3), st.sampled_from([*Kind])), min_size=1, max_size=12))
def test_no_two_tokens_are_spelled_alike_and_none_goes_on_from_another(entries):
    rows = [tuple(s for s in row if s != NO_SYMBOL) for row in spell_vocabulary(vocabulary(entries)).tolist()]
    rows = [row for row in rows if row]
    assert len(rows) == sum(kind != UNUSED for _, kind in entries)
    assert not any(i != j and a == b[: len(a)] for i, a in enumerate(rows) for j, b in enumerate(rows))


def test_an_empty_token_is_refused():
    with pytest.raises(ValueError, match="token 1 of the vocabulary is empty"):
        spell_vocabulary(vocabulary([(b"a", NORMAL), (b"", NORMAL)]))


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


def test_what_is_never_made_is_impossible(head):
    logits = head.logits(random_hidden(3))
    assert logits[:, NEVER].isneginf().all() and logits[:, MADE].isfinite().all()
    assert head.nats(random_hidden(1, 1), torch.tensor([[NEVER]])).isposinf().all()


def test_all_tokens_and_all_other_spellings_are_together_certain(head):
    (hidden,), tokens = random_hidden(1), [symbols_of(head, i) for i in MADE]
    prefixes = {tuple(symbols[:i]) for symbols in tokens for i in range(len(symbols))}
    ways = [[*prefix, symbol] for prefix in prefixes for symbol in range(head.shape.symbols)]
    lost = [way for way in ways if way not in tokens and tuple(way) not in prefixes]
    total = head.logits(hidden[None]).exp().sum().item()
    assert 0 < total < 1
    assert total + sum(math.exp(-nats_of(head, hidden, way)) for way in lost) == pytest.approx(1, abs=1e-4)


def test_each_symbol_is_given_those_before_it_and_no_other(head):
    at, paths = head.prefixes
    for token in MADE:
        symbols = symbols_of(head, token)
        seen = [paths[place].tolist() for place in at[token, : len(symbols)]]
        assert seen == [[head.start] * (5 - i) + symbols[:i] for i in range(len(symbols))]


def test_tokens_that_begin_alike_share_their_prefixes(head):
    at = head.prefixes.indices.tolist()
    assert at[2][:3] == at[3][:3] == at[4][:3] and at[0][1] == at[5][1] == at[2][1]
    assert len(head.prefixes.symbols) == len([b"", b"a", b"b", b"ab", b"abb", b"abba"])


def test_a_loaded_head_spells_like_the_saved_one(head):
    hidden = random_hidden(2)
    other = ByteHead(replace(CONFIG, vocab_size=len(ENTRIES), byte_head=head.shape)).eval()
    assert other.logits(hidden).isneginf().all()
    other.load_state_dict(head.state_dict())
    torch.testing.assert_close(other.logits(hidden), head.logits(hidden), atol=0, rtol=0)


def test_what_prefixes_mean_is_computed_anew_after_training():
    head, hidden, target = new_head(ENTRIES, width=32, features=16, slots=64), random_hidden(1), torch.tensor([[4]])
    with torch.inference_mode():
        before = head.logits(hidden)[0, 4]
    head.train().nats(hidden[None], target).sum().backward()
    with torch.no_grad():
        head.of_prefix.weight -= head.of_prefix.weight.grad
        after = head.eval().logits(hidden)[0, 4]
    assert after.item() == pytest.approx(-head.nats(hidden[None], target).item(), rel=1e-4) != before.item()


def test_a_new_head_finds_every_symbol_about_equally_likely():
    shape = byte_head_shape(vocabulary(ENTRIES))
    model = ChatModel(replace(CONFIG, vocab_size=len(ENTRIES), byte_head=shape))
    initialise(model, 1)
    model.byte_head.set_spelling(spell_vocabulary(vocabulary(ENTRIES)))
    nats = model.byte_head.nats(random_hidden(400, 1), torch.full((400, 1), 4)).mean().item()
    assert nats == pytest.approx(5 * math.log(shape.symbols), rel=0.25)


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


def test_a_head_whose_hidden_states_say_nothing_learns_no_more_than_how_many_words_there_are():
    _, nats = taught(torch.ones(len(TAUGHT), CONFIG.hidden_size))
    assert nats == pytest.approx(math.log(len(TAUGHT)), rel=0.02)


def test_a_control_token_is_spelled_as_its_id():
    head, hidden = new_head(ENTRIES), random_hidden(1)
    with torch.no_grad():
        head.out_proj.weight.zero_()[symbols_of(head, STOP)] = head_features(head, hidden[0])
    assert head.generate_token(hidden[0], 9) == STOP


def head_features(head, hidden):
    path = torch.full((1, head.shape.longest), head.start)
    return gated_by_hand(head.of_hidden(hidden) + head.embed_prefixes(path)[0])


@pytest.mark.parametrize("temperature", [0.0, 3.0])
def test_no_more_bytes_are_spelled_than_allowed_and_no_empty_word(head, temperature):
    torch.manual_seed(0)
    written = [head.generate_token(hidden, 3, temperature) for hidden in random_hidden(40)]
    assert any(isinstance(spelled, bytes) and len(spelled) == 3 for spelled in written)
    assert all(spelled in (BOS, STOP) or 1 <= len(spelled) <= 3 for spelled in written)


def test_a_spelling_that_outgrows_the_vocabulary_goes_on(head):
    endless = copy.deepcopy(head)
    endless.out_proj.weight[FIRST_END_MARK:] = 0.0
    endless.out_proj.weight[FIRST_END_MARK - 1] = 0.0
    assert len(endless.generate_token(random_hidden(1)[0], 50)) == 50


def test_gradients_are_the_same_each_time_where_that_is_asked_for(head):
    trained = copy.deepcopy(head).train().requires_grad_(True)
    ids = torch.tensor(MADE * 50)[None]
    gradients = []
    for _ in range(2):
        trained.nats(random_hidden(1, ids.shape[1]), ids).sum().backward()
        gradients.append([weight.grad for weight in trained.parameters()])
        trained.zero_grad()
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))
