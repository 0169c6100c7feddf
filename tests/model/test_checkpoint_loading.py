import json
from collections import OrderedDict

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from support.external_models import IDS, LLAMA3, logits_of, make, open_on_cpu, rewrite
from support.tiny import VOCABULARY, random_model, write_model

VARIANTS = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-ungrouped": ("llama", {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head_dim": ("llama", {"head_dim": 16}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 1000.0}}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "mistral": ("mistral", {}),
    "mistral-window": ("mistral", {"sliding_window": 7}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3-biases": ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
}


@pytest.fixture
def llama(tmp_path):
    model = make("llama")
    model.save_pretrained(tmp_path / "llama")
    return model, tmp_path / "llama"


@pytest.mark.parametrize(("family", "changes"), VARIANTS.values(), ids=VARIANTS)
def test_other_families_give_the_logits_of_transformers(tmp_path, family, changes):
    model = make(family, **changes)
    model.save_pretrained(tmp_path)
    engine, expected = open_on_cpu(tmp_path), logits_of(model)
    assert (engine.name, engine.context, engine.fingerprint, engine.template) == ("pytorch", 128, "", "")
    np.testing.assert_allclose(engine.sequence_logits(IDS), expected, atol=1e-4)
    engine.append(IDS[:20]), engine.rewind(9), engine.append(IDS[9:21])
    np.testing.assert_allclose([engine.append([token]) for token in IDS[21:]], expected[21:], atol=1e-4)


def as_safetensors(weights, folder):
    save_file(weights, folder / "model.safetensors")


def as_lone_safetensors(weights, folder):
    save_file(weights, folder / "weights.safetensors")


def as_shards(weights, folder, stem="model", suffix="safetensors", save=save_file):
    places = {name: f"{stem}-{i % 3}.{suffix}" for i, name in enumerate(weights)}
    for place in set(places.values()):
        save({name: weights[name] for name in weights if places[name] == place}, folder / place)
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"weight_map": places}))


def as_bin(weights, folder):
    torch.save(weights, folder / "pytorch_model.bin")


def as_bin_shards(weights, folder):
    as_shards(weights, folder, "pytorch_model", "bin", torch.save)


def as_training_checkpoint(weights, folder):
    compiled = OrderedDict((f"module._orig_mod.{name}", torch.nn.Parameter(weight)) for name, weight in weights.items())
    torch.save({"step": 3, "optimizer": {"state": {}, "lr": 0.1}, "model": compiled}, folder / "step3.pt")


def as_state_dict(weights, folder):
    torch.save({"state_dict": weights, "epoch": 1}, folder / "last.pth")


FORMS = [as_safetensors, as_lone_safetensors, as_shards, as_bin, as_bin_shards, as_training_checkpoint, as_state_dict]


@pytest.mark.parametrize("save", FORMS)
def test_each_form_of_file_holds_the_same_model(llama, tmp_path, save):
    model, folder = llama
    weights = load_file(folder / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    save(weights | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}, tmp_path)
    np.testing.assert_allclose(open_on_cpu(tmp_path).sequence_logits(IDS), logits_of(model), atol=1e-4)


def test_a_file_can_be_named_and_shards_are_found_as_transformers_writes_them(llama, tmp_path):
    model, folder = llama
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    for path in (folder / "model.safetensors", tmp_path / "shards", tmp_path / "shards/model.safetensors.index.json"):
        np.testing.assert_allclose(open_on_cpu(path).sequence_logits(IDS), logits_of(model), atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "missing hidden_size"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers '2': expected a whole number"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers 1000000000000: expected"),
        ({"rms_norm_eps": -1}, "rms_norm_eps -1: expected a number above 0"),
        ({"rope_scaling": {"type": "linear"}}, "factor None: expected a number above 0"),
        ({"num_key_value_heads": 3}, "num_attention_heads = 4 is no multiple"),
    ],
)
def test_a_shape_that_cannot_be_is_named_with_its_file(llama, changes, message):
    _, folder = llama
    rewrite(folder, **changes)
    with pytest.raises(ValueError, match=rf"config\.json: not a model configuration: .*{message}"):
        open_on_cpu(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 3}, r'Missing key\(s\) in state_dict: "model\.layers\.2\.\S+", ".*"model\.layers\.2\.'),
        ({"num_hidden_layers": 1}, r'Unexpected key\(s\) in state_dict: "model\.layers\.1\.'),
        ({"num_hidden_layers": 1_000_000}, "21 tensors, but config.json says 1000000 layers"),
        ({"vocab_size": 97}, r"size mismatch for model\.embed_tokens\.weight: .*\[96, 32\]\) .*\[97, 32\]\)"),
        ({"head_dim": 1 << 30}, r"size mismatch for .*\(\[4294967296, 32\]\)"),
    ],
)
def test_weights_that_do_not_fit_are_named_with_their_file(llama, changes, message):
    _, folder = llama
    rewrite(folder, **changes)
    with pytest.raises(ValueError, match=rf"llama: .*{message}"):
        open_on_cpu(folder)


def test_a_shard_that_is_missing_and_one_that_is_elsewhere_are_named(llama, tmp_path):
    _, folder = llama
    as_shards(load_file(folder / "model.safetensors"), folder)
    (folder / "model.safetensors").unlink()
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(ValueError, match=r"index\.json: 1 of 3 files are missing: model-1\.safetensors"):
        open_on_cpu(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../model.safetensors"}}')
    with pytest.raises(ValueError, match="expected names of files beside it"):
        open_on_cpu(folder)


def test_a_folder_without_weights_or_config_is_named(llama, tmp_path):
    _, folder = llama
    with pytest.raises(ValueError, match=r"config\.json is missing"):
        open_on_cpu(tmp_path)
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config\.json is missing"):
        open_on_cpu(folder)


def test_a_folder_of_ours_is_checked_and_says_its_origin(tmp_path):
    folder = write_model(tmp_path, template="markers")
    engine = open_on_cpu(folder)
    assert (engine.fingerprint, engine.template, engine.device) == (VOCABULARY.fingerprint, "markers", "cpu")
    with torch.inference_mode():
        expected = random_model()(torch.tensor([IDS]))[0]
    np.testing.assert_allclose(engine.sequence_logits(IDS), expected, atol=1e-5)
    (folder / "generation_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"generation_config\.json is damaged or was edited"):
        open_on_cpu(folder)
