import json

import pytest
import torch
from safetensors.torch import load_file

from chatmill.model.chat_model import ChatModel
from chatmill.training.lora import ALPHA, LowRank, add_adapters, merged, write_adapter
from chatmill.training.optimizer import adamw
from support.tiny import CONFIG, random_model

IDS = torch.arange(40).view(2, 20) % 17


@pytest.fixture
def trained():
    """A model with adapters after some steps, and its logits before."""
    model = random_model(CONFIG).train()
    before = model(IDS).detach()
    add_adapters(model, 4, seed=1)
    torch.testing.assert_close(model(IDS), before)
    optimizer = adamw(model, 0.01)
    for _ in range(5):
        torch.nn.functional.cross_entropy(model(IDS)[:, :-1].flatten(0, 1), IDS[:, 1:].flatten()).backward()
        optimizer.step(1.0)
    return model, before


def test_nothing_but_adapters_is_trained(trained):
    model, before = trained
    own = random_model(CONFIG).state_dict()
    assert (model(IDS) - before).abs().max() > 0.01
    kept = {name.replace(".linear.", "."): weight for name, weight in model.state_dict().items() if "lora" not in name}
    assert kept.keys() == own.keys() and all(torch.equal(kept[name], weight) for name, weight in own.items())
    assert all("lora" in name for name, weight in model.named_parameters() if weight.requires_grad)


def test_merged_weights_give_the_logits_of_both(trained):
    model, _ = trained
    plain = ChatModel(CONFIG)
    plain.load_state_dict(merged(model.state_dict()))
    torch.testing.assert_close(plain(IDS), model(IDS))


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_the_output_and_its_gradients_are_those_of_both_parts(precision):
    layer = LowRank(torch.nn.Linear(24, 40).requires_grad_(False), 4, torch.Generator().manual_seed(1))
    torch.nn.init.normal_(layer.lora_B.weight)
    x, factor = torch.randn(2, 7, 24, requires_grad=True), torch.randn(2, 7, 40)
    inputs = [x, layer.lora_A.weight, layer.lora_B.weight]
    parts = layer.linear(x) + ALPHA * layer.lora_B(layer.lora_A(x))
    expected = [parts, *torch.autograd.grad((parts * factor).sum(), inputs)]
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
        whole = layer(x)
    found = [whole.float(), *torch.autograd.grad((whole * factor).sum(), inputs)]
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= torch.finfo(precision).eps * 2 * other.norm()


def test_adapters_are_written_under_the_names_of_peft(trained, tmp_path):
    model, _ = trained
    write_adapter(tmp_path / "adapter", model.state_dict(), tmp_path / "base")
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (4, 8, "base")
    assert config["target_modules"] == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    tensors = load_file(tmp_path / "adapter/adapter_model.safetensors")
    assert len(tensors) == 2 * 7 * CONFIG.num_hidden_layers
    assert tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"].shape == (4, CONFIG.hidden_size)
