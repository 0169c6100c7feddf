from dataclasses import replace

import numpy as np
import pytest
from gguf import GGUFWriter

from chatmill.gguf_export.gguf_files import export_gguf
from chatmill.inference.model_loading import load_model
from chatmill.tokenizer.types import bpe, byte, sentencepiece
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens, write_folder
from chatmill.training.model_folder import write_model
from support.gguf_reading import read
from support.texts import NAUGHTY, SAMPLE_TEXT
from support.tiny import CONFIG, random_model

TEXTS = [SAMPLE_TEXT * 2]
VOCABULARIES = {
    "qwen2": bpe.train(TEXTS, 400, bpe.Settings(pattern="qwen2")),
    "llama3": bpe.train(TEXTS, 400, bpe.Settings(pattern="llama3")),
    "gpt2": bpe.train(TEXTS, 400, bpe.Settings(pattern="gpt2")),
    "byte": byte.train([], 256, byte.Settings()),
    "sentencepiece": sentencepiece.train(TEXTS, 500, sentencepiece.Settings(algorithm="bpe")),
}


def own(folder, name, template="chatml"):
    """A model of chatmill with a tokenizer of VOCABULARIES; its GGUF files in `gguf`."""
    vocabulary = add_special_tokens(VOCABULARIES[name], ["<|mood|>"])
    write_folder(vocabulary, folder / "tokenizer")
    model = random_model(replace(CONFIG, vocab_size=len(vocabulary.tokens)))
    metadata = {"template": template, "tools": ["calculator"]}
    write_model(folder / "model", model, folder / "tokenizer", vocabulary, metadata)
    export_gguf(folder / "model", folder / "gguf", ["f16", "q8_0", "q4_0"])
    return folder


@pytest.mark.parametrize("name", VOCABULARIES)
def test_the_tokenizer_is_the_model_s_own(tmp_path, name):
    original, loaded = (
        load_model(own(tmp_path, name) / "model" if part == "model" else tmp_path / "gguf/model-f32.gguf", "cpu")
        for part in ("model", "gguf")
    )
    assert loaded.tokenizer.vocabulary == original.tokenizer.vocabulary
    texts = [SAMPLE_TEXT, *NAUGHTY]
    assert loaded.tokenizer.encode(texts) == original.tokenizer.encode(texts)
    assert (loaded.template, loaded.stop_ids, loaded.tools) == (original.template, original.stop_ids, ("calculator",))
    ids = loaded.tokenizer.encode(SAMPLE_TEXT)[:60]
    np.testing.assert_array_equal(loaded.engine.sequence_logits(ids), original.engine.sequence_logits(ids))


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0"])
def test_quantized_weights_are_those_that_the_package_gguf_dequantizes(tmp_path, kind):
    file = own(tmp_path, "byte", "markers") / f"gguf/model-{kind}.gguf"
    loaded, tensors = load_model(file, "cpu"), read(file).tensors
    assert loaded.template.name == "markers"
    weights = loaded.engine.model.state_dict()
    np.testing.assert_array_equal(weights["model.embed_tokens.weight"], tensors["token_embd.weight"])
    np.testing.assert_array_equal(weights["model.layers.1.mlp.down_proj.weight"], tensors["blk.1.ffn_down.weight"])


def test_a_tokenizer_that_is_not_the_model_s_is_refused(tmp_path):
    one, other = own(tmp_path / "one", "qwen2"), own(tmp_path / "two", "gpt2")
    with pytest.raises(ValueError, match="is not the one the model was trained with"):
        load_model(one / "gguf/model-f32.gguf", tokenizer=other / "tokenizer")


def rewritten(source, target, **changes):
    """A copy of a file with other fields; None removes one."""
    content = read(source)
    fields = {name: value for name, value in content.fields.items() if name != "general.architecture"}
    fields |= {name.replace("__", "."): value for name, value in changes.items()}
    writer = GGUFWriter(target, fields.pop("general.architecture", content.fields["general.architecture"]))
    for name, value in fields.items():
        if isinstance(value, list):
            writer.add_array(name, value)
        elif value is not None:
            kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
            kinds[type(value)](name, value)
    for name, values in content.tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general__architecture": "gemma3"}, "architecture 'gemma3': expected one of llama, qwen2, qwen3: llama.cpp"),
        ({"tokenizer__ggml__pre": "tekken"}, "pre 'tekken': its split pattern is not known: expected one of deepseek"),
        ({"tokenizer__ggml__model": "t5"}, "model 't5': expected gpt2 or llama"),
        ({"tokenizer__ggml__tokens": None}, "expected tokenizer.ggml.tokens"),
        ({"tokenizer__ggml__tokens": ["a", "b"]}, "and as many tokenizer.ggml.token_type"),
        ({"tokenizer__ggml__merges": ["a b c"]}, r"its merge 0, 'a b c', is not of two tokens"),
        ({"tokenizer__ggml__merges": [1, 2]}, "not a tokenizer that chatmill can read"),
        ({"chatmill__fingerprint": "0" * 64}, "its tokenizer is not the one the model was trained with"),
        ({"qwen3__block_count": 1 << 20}, "1,048,576 layers, but"),
        ({"qwen3__block_count": 3}, r'Missing key\(s\) in state_dict: "model\.layers\.2'),
        ({"qwen3__attention__head_count": 0}, "num_attention_heads 0: expected a whole number"),
        ({"qwen3__attention__head_count": None}, "missing num_attention_heads"),
        ({"qwen3__embedding_length": 1 << 30}, "size mismatch for model"),
        ({"qwen3__rope__scaling__type": "yarn"}, "rope scaling 'yarn': only linear is supported"),
        ({"qwen3__rope__dimension_count": 2}, "only all are supported"),
        ({"qwen3__expert_count": 8}, "num_experts 8: not supported"),
        ({"chatmill__template": "", "tokenizer__chat_template": "{{ x }}"}, "said: choose one with --template"),
    ],
)
def test_a_file_that_chatmill_cannot_run_is_refused_with_its_name(tmp_path, changes, message):
    source = own(tmp_path, "qwen2") / "gguf/model-f32.gguf"
    file = rewritten(source, tmp_path / "other.gguf", **changes)
    with pytest.raises(ValueError, match=message) as raised:
        load_model(file, "cpu")
    assert str(raised.value).startswith(f"{file}: ")
