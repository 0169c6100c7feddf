from copy import deepcopy

import pytest
import torch

from chatmill.training.distributed import SINGLE_PROCESS
from chatmill.training.optimizer import learning_rate_factor, muon_adamw, orthogonalise
from support.tiny import CONFIG, random_model


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 12, 40), (2, 40, 12)])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_singular_values_come_near_one_and_directions_stay(shape, precision):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    y = orthogonalise(x.to(precision)).float()
    values = torch.linalg.svdvals(y)
    assert values.min() > 0.3 and values.max() < 1.4
    turned = u.mT @ y @ v.mT
    torch.testing.assert_close(turned, torch.diag_embed(turned.diagonal(dim1=-2, dim2=-1)), atol=0.1, rtol=0)


def loss_of(model):
    ids = torch.arange(40).view(2, 20) % 17
    return torch.nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def test_every_weight_is_changed_once_and_the_loss_falls():
    model = random_model().train()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    optimizer, losses = muon_adamw(model, 0.01, torch.float32), []
    for _ in range(20):
        losses.append(loss_of(model))
        losses[-1].backward()
        optimizer.step(1.0)
    assert losses[-1] < losses[0] / 2
    assert not [name for name, weight in model.state_dict().items() if torch.equal(weight, before[name])]


def test_a_restored_optimizer_goes_on_as_the_first_would():
    first, second = random_model(CONFIG), random_model(CONFIG)
    optimizers = [muon_adamw(model, 0.01, torch.float32) for model in (first, second)]
    for share in (1.0, 0.5):
        loss_of(first).backward()
        optimizers[0].step(share)
        if share == 1.0:
            second.load_state_dict(first.state_dict())
            optimizers[1].load_state_dict(deepcopy(optimizers[0].state_dict()), SINGLE_PROCESS)
    loss_of(second).backward()
    optimizers[1].step(0.5)
    assert optimizers[1].learning_rate == 0.005
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_the_rate_rises_stays_and_falls_to_the_end():
    shares = [learning_rate_factor(step, 200) for step in range(200)]
    assert shares[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert shares[100] == 1.0 and shares[150] == 0.5 and shares[199] == pytest.approx(0.01)
    assert [learning_rate_factor(step, 1) for step in range(1)] == [1.0]
