from dataclasses import replace
from itertools import product
from math import log, prod

import pytest
import torch

from chatmill.checkpoints.configuration import Chunking
from chatmill.model.chat_model import ChatModel, initialise
from chatmill.soft_tokenizer import routing
from chatmill.soft_tokenizer.routing import Autoencoder, RouterOutput, ratio_loss, surprise_loss
from chatmill.training.optimizer import MuonAdamW
from support.tiny import CONFIG

WORDS = [[10, 11, 12], [20, 21, 22, 23, 24], [30, 31], [40, 41, 42, 43]]
TABLE = torch.randn(20, 8, generator=torch.Generator().manual_seed(1))


def routed(p, x=None):
    """The router's output p for one conversation in each row."""
    return RouterOutput(torch.zeros(*p.shape, 6) if x is None else x, p, torch.arange(p.shape[1])[None])


def penalised(model, ids):
    """(B, T) ids -> (B,): the auxiliary loss of the chunk boundaries."""
    return model.nats(ids, None, None, ids.roll(-1, 1))[1]


def test_the_ratio_loss_is_that_worked_by_hand():
    starts, p = torch.tensor([[True, False, False, False, True]]), torch.tensor([[1.0, 0.2, 0.1, 0.1, 0.6]])
    assert ratio_loss(starts, p, 4.0).item() == pytest.approx(4 / 3 * (3 * 0.4 * 0.4 + 0.6 * 0.6))
    assert ratio_loss(torch.arange(8)[None] % 4 == 0, torch.full((1, 8), 0.25), 4.0).item() == pytest.approx(1.0)


@pytest.mark.parametrize(("everywhere", "punished"), [(True, 4.0), (False, 4 / 3)])
def test_chunks_of_one_token_and_one_chunk_of_all_are_punished(everywhere, punished):
    p = torch.full((1, 64), float(everywhere), requires_grad=True)
    (loss,) = ratio_loss(p >= 0.5, p, 4.0)
    loss.backward()
    assert loss.item() == pytest.approx(punished)
    assert (p.grad > 0).all() if everywhere else (p.grad < 0).all()


def test_the_loss_of_surprise_is_that_worked_by_hand():
    p = torch.tensor([[1.0, 0.9, 0.2, 0.7, 0.4, 0.1]])
    nats = torch.tensor(
        [[5.0, 1.0, 2.0, 3.0, 0.5, 9.0]]
    )  # of the token after each: the second is hardest, then the fifth
    expected = -sum(map(log, [0.9, 0.8, 0.3, 0.6, 0.9])) / 6  # the first token always begins a chunk
    assert surprise_loss(routed(p), nats, 3.0).item() == pytest.approx(expected)


def test_surprise_moves_boundaries_and_not_what_surprises():
    p, nats = torch.full((2, 12), 0.3, requires_grad=True), torch.rand(2, 12, requires_grad=True)
    surprise_loss(routed(p), nats, 4.0).sum().backward()
    assert (
        nats.grad is None and ((p.grad < 0).sum(dim=1) == 2).all()
    )  # the third would be the last token, which is only a target


def test_each_row_is_surprised_by_itself():
    generator = torch.Generator().manual_seed(0)
    p, nats = torch.rand(3, 40, generator=generator), torch.rand(3, 40, generator=generator)
    alone = torch.cat([surprise_loss(routed(p[row : row + 1]), nats[row : row + 1], 4.0) for row in range(3)])
    torch.testing.assert_close(surprise_loss(routed(p), nats, 4.0), alone)


@pytest.mark.parametrize("read_back", [3, 12])
def test_the_cost_of_reading_back_is_the_mean_over_all_ways_to_cut(read_back, monkeypatch):
    monkeypatch.setattr(routing, "_MAX_RECONSTRUCTED", read_back)
    monkeypatch.setattr(routing, "_ALWAYS", 0.0)
    generator = torch.Generator().manual_seed(0)
    ids, x = torch.randint(20, (1, 9), generator=generator), torch.randn(1, 9, 6, generator=generator)
    p = torch.rand(1, 9, generator=generator)
    p[0, 0] = 1 - 1e-5
    autoencoder, end, expected = Autoencoder(6, 8), 7, 0.0  # the one end that is tried
    nats = autoencoder._nats(x[:, [end]], ids[:, [[max(0, end - back) for back in range(read_back)]]], TABLE)[0, 0]
    for starts in product([False, True], repeat=8):
        chance = prod(q if start else 1 - q for start, q in zip(starts, p[0, 1:].tolist(), strict=True))
        if starts[end]:  # the token after it begins a chunk
            length = end + 1 - max([0, *(token + 1 for token in range(end) if starts[token])])
            cost = nats[:length].sum().item() + (length > read_back) * 4.0 * log(20)
            expected += chance * cost
    assert autoencoder(routed(p, x), ids, TABLE, 4.0).item() == pytest.approx(expected, rel=1e-3)


def test_of_a_row_too_short_to_try_an_end_nothing_is_read_back():
    p, ids = torch.rand(2, 8), torch.zeros(2, 8, dtype=torch.long)
    assert Autoencoder(6, 8)(routed(p), ids, TABLE, 4.0).tolist() == [0, 0]


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_penalty_brings_a_collapsed_router_back_to_its_rate(sign):
    torch.manual_seed(0)
    model = ChatModel(replace(CONFIG, chunking=Chunking(rate=4.0, width=48, weight=1.0, surprise=0.0)))
    initialise(model, 0)
    model.model.router.k_proj.weight.data = sign * model.model.router.q_proj.weight.data.clone()
    model.model.embed_tokens.weight.data = torch.randn(CONFIG.vocab_size, CONFIG.hidden_size).cumsum(0)
    ids = torch.arange(256).view(4, 64)  # neighbours have similar embeddings
    collapsed = model.boundaries(ids).float().mean()
    optimizer = torch.optim.Adam(model.model.router.parameters(), lr=0.01)
    for _ in range(60):
        penalised(model, ids).sum().backward()
        optimizer.step(), optimizer.zero_grad()
    assert collapsed < 0.1 if sign > 0 else collapsed > 0.9
    assert 0.15 < model.boundaries(ids).float().mean() < 0.4


def words(rows, time, generator):
    """(B, T) ids, words in random order; (B, T) bool, where they begin."""
    ids, begins = [], []
    for _ in range(rows):
        drawn = [WORDS[i] for i in torch.randint(len(WORDS), (time,), generator=generator)]
        ids.append([token for word in drawn for token in word][:time])
        begins.append([token == word[0] for word in drawn for token in word][:time])
    return torch.tensor(ids), torch.tensor(begins)


@pytest.mark.parametrize("boundaries", ["learned", "autoencoder"])
def test_chunks_come_to_begin_where_words_do(boundaries):
    chunking = Chunking(boundaries=boundaries, rate=3.5, width=32, ngrams=(2,), slots=64)
    model, generator = ChatModel(replace(CONFIG, chunking=chunking)), torch.Generator().manual_seed(0)
    initialise(model, 0)
    optimizer = MuonAdamW(model, 0.02, torch.float32)
    for _ in range(80):
        ids, _ = words(8, 97, generator)
        nats, penalty = model.nats(ids[:, :-1], None, None, ids[:, 1:])
        (nats.mean() + penalty.mean()).backward()
        optimizer.step(1.0)
    ids, begins = words(8, 96, generator)
    starts = model.boundaries(ids)
    assert begins[starts].float().mean() > 0.9 and starts[begins].float().mean() > 0.7
