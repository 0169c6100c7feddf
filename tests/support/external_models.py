"""Small random models as transformers saves them, and their logits."""

import json

import numpy as np
import pytest
import torch

from chatmill.inference.model_loading import open_weights

transformers = pytest.importorskip("transformers")

SMALL = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"num_key_value_heads": 2, "max_position_embeddings": 128, "sliding_window": None}

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 32}

IDS = np.random.default_rng(0).integers(0, 96, 60).tolist()


def make(family, **changes):
    """A random model of transformers whose biases and norms are not zeros and ones."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SMALL | changes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn_like(weight)
            weight.copy_(1 + 0.2 * noise if weight.ndim == 1 else noise / weight.shape[1] ** 0.5)
    return model.eval()


@torch.inference_mode()
def logits_of(model, ids=IDS):
    return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


def open_on_cpu(path):
    return open_weights(path, device="cpu", threads=1)


def rewrite(folder, **changes):
    """Change a config.json; None removes a field."""
    file = folder / "config.json"
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))
