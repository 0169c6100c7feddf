import copy
import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from chatmill.checkpoints.configuration import ModelConfig, Variant, to_hugging_face
from chatmill.model import chat_model
from chatmill.model.chat_model import ChatModel, initialise, nats_in_blocks
from chatmill.pipeline.manifest import write_manifest
from support.tiny import random_model

CONFIG = ModelConfig.from_depth(2, vocab_size=128, context=64, width=64, heads=4)


@pytest.fixture(scope="module")
def model():
    """Random weights everywhere, so that no term keeps its initial zero or one."""
    torch.manual_seed(0)
    model = ChatModel(CONFIG)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
    return model.eval().requires_grad_(False)


def random_variant(variant, **changes):
    return random_model(replace(CONFIG, variant=variant, **changes)).requires_grad_(False)


def random_ids(batch, time):
    return torch.randint(0, CONFIG.vocab_size, (batch, time), generator=torch.Generator().manual_seed(time))


def save(model, folder):
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(to_hugging_face(model.config)), encoding="utf-8")
    write_manifest(folder, kind="model", fingerprint="f")


@pytest.mark.parametrize(
    "depth", [*range(1, 7), *(pytest.param(depth, marks=pytest.mark.slow) for depth in range(7, 13))]
)
def test_every_depth_of_the_dial_is_a_qwen3_to_transformers(depth, tmp_path):
    transformers = pytest.importorskip("transformers")
    ours = random_model(ModelConfig.from_depth(depth, vocab_size=128, context=64)).requires_grad_(False)
    save(ours, tmp_path)
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(theirs).__name__ == "Qwen3ForCausalLM" and not any(report.values())
    ids = random_ids(2, 50)
    torch.testing.assert_close(ours(ids), theirs(ids).logits.detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("parts", [[20], [1] * 20, [7, 1, 12], [19, 1]])
def test_a_cache_gives_the_logits_of_the_whole_sequence(model, parts):
    ids, cache = random_ids(3, 20), model.new_cache(3, 20)
    logits = torch.cat([model(part, cache=cache) for part in ids.split(parts, dim=1)], dim=1)
    assert cache.length == 20
    torch.testing.assert_close(logits, model(ids), atol=1e-4, rtol=1e-4)


def test_a_rewound_cache_forgets(model):
    ids, cache = random_ids(1, 12), model.new_cache(1, 12)
    model(torch.cat([ids[:, :5], ids[:, :7]], dim=1), cache=cache)
    cache.length = 5
    logits = model(ids[:, 5:], cache=cache)
    torch.testing.assert_close(logits, model(ids)[:, 5:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("parts", [[20], [1] * 20, [7, 1, 12], [4, 16]])
def test_a_cache_gives_the_logits_of_the_whole_sequence_in_a_window(parts):
    model = random_variant(Variant(sliding_window=5))
    ids, cache = random_ids(2, 20), model.new_cache(2, 20)
    logits = torch.cat([model(part, cache=cache) for part in ids.split(parts, dim=1)], dim=1)
    torch.testing.assert_close(logits, model(ids), atol=1e-4, rtol=1e-4)


def test_half_precision_is_near_float32(model):
    halved = copy.deepcopy(model).bfloat16()
    for layer in halved.model.layers:
        layer.self_attn.q_norm.float(), layer.self_attn.k_norm.float()
    halved.build_rotary_tables(64)
    ids, cache = random_ids(1, 40), halved.new_cache(1, 64)
    halved(ids[:, :30], cache=cache)
    logits, expected = halved(ids[:, 30:], cache=cache).float(), model(ids)[:, 30:]
    assert cache.keys[0].dtype == torch.bfloat16
    assert (logits - expected).norm() < 0.05 * expected.norm()


def test_a_new_model_knows_nothing_and_its_seed_decides_it():
    first, second, other = (ChatModel(CONFIG) for _ in range(3))
    for model, seed in ((first, 1), (second, 1), (other, 2)):
        initialise(model, seed)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.model.embed_tokens.weight, other.model.embed_tokens.weight)
    nats = torch.nn.functional.cross_entropy(first(random_ids(1, 10))[0], random_ids(1, 20)[0, 10:])
    assert nats.item() == pytest.approx(math.log(CONFIG.vocab_size), rel=0.1)


@pytest.mark.parametrize(("depth", "vocab_size", "millions"), [(1, 2048, 0.2), (4, 2048, 3.5), (12, 50304, 118)])
def test_the_dial_gives_models_of_these_sizes(depth, vocab_size, millions):
    with torch.device("meta"):
        model = ChatModel(ModelConfig.from_depth(depth, vocab_size=vocab_size, context=1024))
    assert sum(weight.numel() for weight in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_key_value_heads": 3}, "num_attention_heads = 4 is no multiple"),
        ({"head_dim": 15}, "head_dim = 15 is odd"),
    ],
)
def test_impossible_shapes_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **change)


@pytest.mark.parametrize("share", [1, 0.5])
def test_the_loss_in_blocks_is_that_of_all_logits(monkeypatch, share):
    monkeypatch.setattr(chat_model, "BLOCK_LOGITS", 7 * 50)
    generator = torch.Generator().manual_seed(0)
    x, head = torch.randn(20, 8, generator=generator), torch.randn(50, 8, generator=generator)
    targets, weights = torch.randint(50, (20,), generator=generator), torch.rand(20, generator=generator)
    targets = targets.where(weights < share, -1)

    def whole(x, head, targets):
        return torch.nn.functional.cross_entropy(x @ head.T, targets, reduction="none", ignore_index=-1)

    found = []
    for nats_of in (whole, nats_in_blocks):
        inputs = [x.clone().requires_grad_(), head.clone().requires_grad_()]
        nats = nats_of(*inputs, targets)
        (nats * weights).sum().backward()
        found.append([nats.detach(), *(one.grad for one in inputs)])
    for first, second in zip(*found, strict=True):
        torch.testing.assert_close(first, second)
    assert nats_in_blocks(x, head, torch.full_like(targets, -1)).sum() == 0
