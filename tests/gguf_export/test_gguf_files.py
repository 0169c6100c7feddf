import json
import shutil

import numpy as np
import pytest
import torch

from chatmill.gguf_export.fields import UnsupportedModel
from chatmill.gguf_export.gguf_files import export_gguf
from chatmill.inference.model_loading import load_model
from support.external_folder import IDS, write_external
from support.external_models import LLAMA3, logits_of, make, rewrite
from support.gguf_reading import logits_in_llama_cpp, open_in_llama_cpp, read

FAMILIES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
TEXT = "The quick brown fox jumps over the lazy dog."  # whose ids are IDS
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
VARIANTS = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("llama", {"rope_parameters": LLAMA3}),
    ("llama", {"rope_parameters": LINEAR, "head_dim": 16}),
    ("mistral", {"num_key_value_heads": 1}),
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": True, "rope_parameters": LINEAR}),
    ("qwen3", {"head_dim": 16}),
]


def export(folder, family, quantize=(), **changes):
    """What llama.cpp reads of a model of transformers, and the model."""
    theirs = write_external(folder / "model", family, **changes)
    export_gguf(folder / "model", folder / "gguf", quantize)
    return folder / "gguf/model-f32.gguf", theirs


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request, tmp_path_factory):
    """A file, and what transformers makes of IDS with the model in it."""
    file, theirs = export(tmp_path_factory.mktemp("variant"), request.param[0], **request.param[1])
    return file, logits_of(theirs, IDS)


def test_chatmill_gives_the_logits_of_transformers(variant):
    loaded = load_model(variant[0].parent, "cpu", threads=1, template="plain")
    np.testing.assert_allclose(loaded.engine.sequence_logits(IDS), variant[1], atol=2e-4)
    assert loaded.tokenizer.encode(TEXT) == IDS and loaded.stop_ids == {257, 258}


def test_llama_cpp_gives_the_logits_of_transformers(variant):
    model = open_in_llama_cpp(variant[0])
    np.testing.assert_allclose(logits_in_llama_cpp(model, IDS), variant[1], atol=2e-4)
    assert model.tokenize(TEXT.encode(), add_bos=False) == IDS


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_is_in_the_file(tmp_path, family):
    """Rows of Llama's queries and keys are in another order, within their head."""
    file, theirs = export(tmp_path, family, tie_word_embeddings=family == "qwen2")
    found, weights = read(file), dict(theirs.named_parameters())
    assert found.fields["general.architecture"] == FAMILIES[family]
    assert len(found.tensors) == len(weights)
    assert ("output.weight" in found.tensors) == (family != "qwen2")
    for layer in range(2):
        for ours, name in {"attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "o"}.items():
            weight = weights[f"model.layers.{layer}.self_attn.{name}_proj.weight"].detach().numpy()
            stored = found.tensors[f"blk.{layer}.{ours}.weight"]
            if FAMILIES[family] == "llama" and name in "qk":
                assert not np.array_equal(stored, weight)
                stored, weight = (np.sort(rows.reshape(-1, 8, 32), axis=1) for rows in (stored, weight))
            np.testing.assert_array_equal(stored, weight)
    np.testing.assert_array_equal(found.tensors["output_norm.weight"], weights["model.norm.weight"].detach())


def rotated(rows, angle, first, second):
    """Channels of a head (D,), the pairs of which are turned by their angles."""
    result = rows.copy()
    result[first] = rows[first] * np.cos(angle) - rows[second] * np.sin(angle)
    result[second] = rows[first] * np.sin(angle) + rows[second] * np.cos(angle)
    return result


def test_pairs_of_neighbours_turn_as_halves_of_a_head_did(tmp_path):
    """The score of a query and a key at other places, by both ways of rotating (1 head of 8 channels)."""
    file, theirs = export(tmp_path, "llama")
    stored, weights = read(file).tensors, dict(theirs.named_parameters())
    vector, angles = np.random.default_rng(1).normal(size=32), np.array([1.0, 0.3, 0.1, 0.02])
    halves, pairs = (slice(0, 4), slice(4, 8)), (slice(0, 8, 2), slice(1, 8, 2))
    original = [weights[f"model.layers.0.self_attn.{name}_proj.weight"].detach().numpy() for name in "qk"]
    exported = [stored["blk.0.attn_q.weight"], stored["blk.0.attn_k.weight"]]
    scores = []
    for (query, key), channels in ((original, halves), (exported, pairs)):
        turned = [rotated(rows[:8] @ vector, place * angles, *channels) for rows, place in ((query, 5), (key, 2))]
        scores.append(turned[0] @ turned[1])
    assert scores[0] == pytest.approx(scores[1], rel=1e-6)


def test_shards_and_half_precision_are_read(tmp_path):
    theirs = make("qwen3", vocab_size=259, bos_token_id=256, eos_token_id=257).to(torch.bfloat16)
    theirs.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    assert (tmp_path / "model/model.safetensors.index.json").exists()
    write_external(tmp_path / "other", "qwen3")
    shutil.copy(tmp_path / "other/tokenizer.json", tmp_path / "model/tokenizer.json")
    export_gguf(tmp_path / "model", tmp_path / "gguf", [])
    found = read(tmp_path / "gguf/model-f32.gguf").tensors["token_embd.weight"]
    np.testing.assert_array_equal(found, theirs.model.embed_tokens.weight.detach().float())


def test_tokens_that_end_an_answer(tmp_path):
    """Of three, llama.cpp has a place for each; the Modelfile has all."""
    folder = tmp_path / "model"
    write_external(folder, "llama")
    rewrite(folder, eos_token_id=None)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [256, 257, 258]}))
    export_gguf(folder, tmp_path / "gguf", [])
    fields = read(tmp_path / "gguf/model-f32.gguf").fields
    assert {fields[f"tokenizer.ggml.{name}_token_id"] for name in ("eos", "eot", "eom")} == {256, 257, 258}
    expected = ['PARAMETER stop "<s>"', 'PARAMETER stop "</s>"', 'PARAMETER stop "<|im_end|>"']
    assert (tmp_path / "gguf/Modelfile").read_text().splitlines()[1:-1] == expected


@pytest.mark.parametrize("template", ["", "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"])
def test_llama_cpp_adds_the_token_that_begins_a_text_unless_the_template_does(tmp_path, template):
    write_external(tmp_path / "model", "llama")
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "chat_template": template}
    (tmp_path / "model/tokenizer_config.json").write_text(json.dumps(config))
    export_gguf(tmp_path / "model", tmp_path / "gguf", [])
    fields = read(tmp_path / "gguf/model-f32.gguf").fields
    assert fields["tokenizer.ggml.bos_token_id"] == 256
    assert fields["tokenizer.ggml.add_bos_token"] is not bool(template)
    assert fields.get("tokenizer.chat_template", "") == template


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("qwen3", {"attention_bias": True}, "qwen3 has no biases after attention in llama.cpp"),
        ("qwen3", {"rope_parameters": LLAMA3}, "qwen3 has no rope_type llama3 in llama.cpp"),
        ("qwen2", {"rope_parameters": LLAMA3}, "qwen2 has no rope_type llama3 in llama.cpp"),
        ("llama", {"eos_token_id": None}, "no token ends an answer, for which llama.cpp takes id 11"),
    ],
)
def test_what_llama_cpp_has_not_is_refused_and_nothing_is_written(tmp_path, family, changes, message):
    write_external(tmp_path / "model", family, **{name: value for name, value in changes.items() if value is not None})
    rewrite(tmp_path / "model", **changes)
    if "eos_token_id" in changes:
        (tmp_path / "model/generation_config.json").unlink()
    with pytest.raises(UnsupportedModel, match=message):
        export_gguf(tmp_path / "model", tmp_path / "gguf", [])
    assert not (tmp_path / "gguf").exists()
