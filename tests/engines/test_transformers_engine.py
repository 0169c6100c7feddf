import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from support.external_models import IDS, logits_of, make, open_on_cpu, rewrite, transformers
from support.paths import SOURCE


def gpt2(folder):
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=96, n_positions=128, n_embd=32, n_layer=2, n_head=4)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(folder)
    return model


def mamba(folder):
    torch.manual_seed(0)
    config = transformers.MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, state_size=8)
    model = transformers.MambaForCausalLM(config).eval()
    model.save_pretrained(folder)
    return model


def gemma(folder):
    """Sliding windows in some layers: a cache that drops tokens, and cannot be cropped."""
    changes = {"head_dim": 8, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
    model = make("gemma2", **changes)
    model.save_pretrained(folder)
    return model


def mixed_windows(folder):
    model = make("qwen2", use_sliding_window=True, sliding_window=6, max_window_layers=1)
    model.save_pretrained(folder)
    return model


def yarn(folder):
    rope = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 32}
    model = make("llama", rope_parameters=rope)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("write", [gpt2, mamba, gemma, mixed_windows, yarn])
def test_other_models_run_through_transformers(tmp_path, write):
    expected = logits_of(write(tmp_path))
    engine = open_on_cpu(tmp_path)
    assert (engine.name, engine.vocab_size, engine.device, engine.template) == ("transformers", 96, "cpu", "")
    np.testing.assert_allclose(engine.sequence_logits(IDS), expected, atol=1e-4)
    np.testing.assert_allclose(engine.append(IDS[:20]), expected[19], atol=1e-4)
    for length in (11, 12, 3, 0):
        engine.rewind(length)
        np.testing.assert_allclose(engine.append(IDS[length : length + 9]), expected[length + 8], atol=1e-4)
        np.testing.assert_allclose(engine.append([IDS[length + 9]]), expected[length + 9], atol=1e-4)
        assert engine.length == length + 10
        np.testing.assert_allclose(engine.append(IDS[length + 10 : 30]), expected[29], atol=1e-4)


def test_weights_that_transformers_would_make_up_are_refused(tmp_path):
    gpt2(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["transformer.h.1.ln_1.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"1 weights missing or misshapen: transformer\.h\.1\.ln_1\.weight"):
        open_on_cpu(tmp_path)


def test_a_model_that_nobody_knows_is_refused_with_both_reasons(tmp_path):
    make("llama").save_pretrained(tmp_path)
    rewrite(tmp_path, model_type="abacus", architectures=["AbacusForCausalLM"])
    with pytest.raises(ValueError, match=r"model_type 'abacus': expected .*, and transformers rejects it: "):
        open_on_cpu(tmp_path)


@pytest.mark.slow
def test_without_transformers_the_way_to_it_is_said(tmp_path):
    gpt2(tmp_path)
    program = f"""
import sys
from importlib.machinery import PathFinder
class Hidden(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == "transformers" else PathFinder.find_spec(name, path, target)
sys.meta_path = [Hidden if finder is PathFinder else finder for finder in sys.meta_path]
from pathlib import Path
from chatmill.inference.model_loading import open_weights
try:
    open_weights(Path({str(tmp_path)!r}))
except ValueError as error:
    print(error)
"""
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert result.stdout.endswith("transformers may run it: pip install 'chatmill[hf]'\n"), result.stderr
