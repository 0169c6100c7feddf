import pytest

from chatmill.checkpoints.configuration import UnsupportedArchitecture, read_config
from support.external_models import SMALL, transformers


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_fields_that_are_not_there_have_the_values_of_transformers(family):
    theirs = transformers.AutoConfig.for_model(family)
    needed = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    ours = read_config({"model_type": family} | {name: getattr(theirs, name) for name in needed})
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    assert (ours.head_dim, ours.rope_theta) == (head_dim, theirs.rope_parameters["rope_theta"])
    for name in ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.variant.sliding_window == (theirs.sliding_window if family == "mistral" else None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2': expected one of llama, mistral, qwen2, qwen3"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_type 'yarn'"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "only the same for all layers"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"quantization_config": {"bits": 4}}, "quantization_config {'bits': 4}"),
        ({"architectures": ["LlamaForTokenClassification"]}, "LlamaForTokenClassification"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
            "sliding_window 8 in 1 layers: only all layers are supported",
        ),
    ],
)
def test_what_our_model_cannot_express_is_named(changes, message):
    with pytest.raises(UnsupportedArchitecture, match=message):
        read_config({"model_type": "llama"} | SMALL | changes)
