import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from chatmill.conversation import BOS, CALL_END, IM_END, PAD
from chatmill.pipeline.manifest import check_manifest
from chatmill.tokenizer.types import bpe
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens, chat_template, write_folder
from chatmill.training.model_folder import write_model as write_new
from export_gguf import main
from support.gguf_reading import read
from support.texts import SAMPLE_TEXT
from support.tiny import CONFIG, random_model

BPE = add_special_tokens(bpe.train([SAMPLE_TEXT * 2], 400, bpe.Settings()), ["<|mood|>"])


def write(folder, vocabulary=BPE, template="chatml", **changes):
    """A model as train_model writes one."""
    write_folder(vocabulary, folder / "tokenizer")
    model = random_model(replace(CONFIG, vocab_size=len(vocabulary.tokens), **changes))
    metadata = {"template": template, "tools": ["calculator"]}
    write_new(folder / "model", model, folder / "tokenizer", vocabulary, metadata)
    return folder / "model"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write(tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="module")
def exported(model):
    main(model, model.with_name("gguf"), quantize=["q8_0", "f16", "q4_0"])
    return model.with_name("gguf")


def test_folder_holds_the_files_and_says_so(exported):
    files = [f"model-{kind}.gguf" for kind in ("f32", "q8_0", "f16", "q4_0")]
    others = ["Modelfile", "formats.json", "manifest.json"]
    assert sorted(file.name for file in exported.iterdir()) == sorted(files + others)
    assert check_manifest(exported) == BPE.fingerprint
    assert json.loads((exported / "formats.json").read_text()) == {"gguf": {"files": files, "exact": True}}
    sizes = [(exported / f"model-{kind}.gguf").stat().st_size for kind in ("f32", "f16", "q8_0", "q4_0")]
    assert sizes == sorted(sizes, reverse=True)


def test_two_exports_are_equal_byte_for_byte(model, exported, tmp_path):
    main(model, tmp_path / "again", quantize=["q8_0", "f16", "q4_0"])
    for file in exported.iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()


def test_the_fields_are_those_of_the_model_and_its_tokenizer(model, exported):
    fields = read(exported / "model-f32.gguf").fields
    config, special = json.loads((model / "config.json").read_text()), BPE.special
    unused = [name.decode() for name in BPE.tokens if name.startswith(b"<|unused_")]
    controls = [*special, *unused]
    vocab = json.loads((model / "tokenizer.json").read_text())["model"]
    assert fields.pop("tokenizer.ggml.tokens") == [*sorted(vocab["vocab"], key=vocab["vocab"].get), *controls]
    assert fields.pop("tokenizer.ggml.token_type") == [1] * BPE.num_text + [3] * len(special) + [5] * len(unused)
    assert fields.pop("tokenizer.ggml.merges") == [" ".join(merge) for merge in vocab["merges"]]
    assert fields.pop("qwen3.attention.layer_norm_rms_epsilon") == pytest.approx(1e-6)
    expected = {"general.architecture": "qwen3", "general.file_type": 0, "general.quantization_version": 2}
    expected |= {"qwen3.block_count": 2, "qwen3.context_length": CONFIG.max_position_embeddings}
    expected |= {"qwen3.embedding_length": 32, "qwen3.feed_forward_length": 64, "qwen3.vocab_size": len(BPE.tokens)}
    expected |= {"qwen3.attention.head_count": 4, "qwen3.attention.head_count_kv": 2}
    expected |= {"qwen3.attention.key_length": 16, "qwen3.attention.value_length": 16}
    expected |= {"qwen3.rope.dimension_count": 16, "qwen3.rope.freq_base": config["rope_theta"]}
    tokens = {"bos": BOS, "eos": IM_END, "eot": IM_END, "eom": CALL_END, "padding": PAD}
    expected |= {f"tokenizer.ggml.{name}_token_id": special[token] for name, token in tokens.items()}
    expected |= {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_space_prefix": False}
    expected |= {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2"}
    expected |= {"tokenizer.chat_template": chat_template("chatml"), "chatmill.fingerprint": BPE.fingerprint}
    expected |= {"chatmill.template": "chatml", "chatmill.tokenizer_type": "bpe", "chatmill.tools": ["calculator"]}
    assert fields == expected


LAYER = {"attn_norm": "input_layernorm", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm"}
LAYER |= {f"attn_{name}": f"self_attn.{name}_proj" for name in "qkv"}
LAYER |= {f"attn_{name}_norm": f"self_attn.{name}_norm" for name in "qk"}
NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"} | {
    f"blk.{layer}.{theirs}.weight": f"model.layers.{layer}.{ours}.weight"
    for layer in range(2)
    for theirs, ours in (LAYER | {f"ffn_{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")}).items()
}


@pytest.mark.parametrize(("kind", "error"), [("f16", 2**-11), ("q8_0", 0.5 / 127 + 2**-11), ("q4_0", 1 / 8 + 2**-11)])
def test_quantized_weights_are_as_near_as_their_type_allows(model, exported, kind, error):
    """Relative to the largest number of a block of 32: half a step, or a whole one at the end that q4_0 cuts off.

    The scale of a block is float16 and has an error of its own.
    """
    weights, found = load_file(model / "model.safetensors"), read(exported / f"model-{kind}.gguf")
    for name, ours in NAMES.items():
        weight, near = weights[ours], found.tensors[name]
        if weight.ndim == 1:
            assert found.types[name] == "F32"
            np.testing.assert_array_equal(near, weight)
            continue
        assert found.types[name] == kind.upper()
        largest = np.abs(weight.reshape(-1, 32)).max(axis=1, keepdims=True)
        assert (np.abs(near - weight).reshape(-1, 32) <= error * largest + 1e-7).all() and (near != weight).any()


def test_the_template_is_that_of_the_model(tmp_path):
    main(write(tmp_path, template="markers"), tmp_path / "gguf", quantize=[])
    fields = read(tmp_path / "gguf/model-f32.gguf").fields
    assert fields["tokenizer.chat_template"] == chat_template("markers")
    assert (tmp_path / "gguf/Modelfile").read_text().startswith("FROM ./model-f32.gguf\n")


def test_a_damaged_model_is_refused(tmp_path):
    folder = write(tmp_path)
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        main(folder, tmp_path / "gguf", quantize=[])
