import json
from dataclasses import replace

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

import encode
import export_onnx
from chatmill.checkpoints.configuration import to_hugging_face
from chatmill.conversation import BOS, IM_END, IM_START, PAD
from chatmill.inference.model_loading import load_model
from chatmill.tokenizer.formats.tokenizer_loading import make_lossless, read_vocabulary
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens, stand_ins, write_folder
from chatmill.tokenizer.vocabulary.vocabulary import Kind
from chatmill.training.new_model import load_initial, matching_rows
from support.external_folder import IDS, write_external, write_tokenizer
from support.external_models import LLAMA3, logits_of, make, rewrite, transformers
from support.tiny import CONFIG, VOCABULARY, random_model, write_model
from support.training_runs import read_curve, run_training, write_teacher, write_tokens

FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]
WINDOW = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0}
SHAPES = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 1000.0}}),
    "mistral-window": ("mistral", {"sliding_window": 7}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("qwen2", WINDOW),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3-biases": ("qwen3", {"attention_bias": True, "rope_parameters": LLAMA3}),
}


def chat_vocabulary(folder):
    """The tokenizer that train_tokenizer writes for a folder's tokenizer."""
    return add_special_tokens(make_lossless(read_vocabulary(folder)), [])


def save(model, folder):
    """The folder, as train_model writes it."""
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(to_hugging_face(model.config)))
    return transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_the_loss_at_step_0_is_that_of_transformers(tmp_path, family, tied):
    theirs = write_external(tmp_path, family, tie_word_embeddings=tied)
    ours = load_initial(tmp_path, chat_vocabulary(tmp_path), 64)
    ids = torch.tensor([[256, *IDS]])
    expected = theirs(ids, labels=ids).loss.item()
    logits = ours(ids)[0, :-1]
    assert ours.config.vocab_size == logits.shape[1] == 320
    assert cross_entropy(logits[:, :259], ids[0, 1:]).item() == pytest.approx(expected, abs=1e-4)


def test_an_earlier_model_goes_on_as_it_was(tmp_path):
    write_model(tmp_path / "model")
    model = load_initial(tmp_path / "model", VOCABULARY, 640)
    assert model.config == CONFIG
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), random_model().parameters(), strict=True))
    assert all(weight.requires_grad and weight.dtype == torch.float32 for weight in model.parameters())


@pytest.mark.parametrize("tied", [True, False])
def test_rows_follow_their_tokens_to_other_ids(tmp_path, tied):
    write_external(tmp_path, "llama", tie_word_embeddings=tied)
    same = load_initial(tmp_path, chat_vocabulary(tmp_path), 64)
    (tmp_path / "other").mkdir()
    write_tokenizer(tmp_path / "other", sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet(), reverse=True))
    reversed_ = load_initial(tmp_path, chat_vocabulary(tmp_path / "other"), 64)
    logits = reversed_(255 - torch.tensor([IDS]))[..., :256].flip(-1)
    torch.testing.assert_close(logits, same(torch.tensor([IDS]))[..., :256])


def test_control_tokens_have_the_rows_of_the_same_meaning(tmp_path):
    write_external(tmp_path, "llama")
    vocabulary, content = chat_vocabulary(tmp_path), {"bos_token_id": 256, "eos_token_id": [257, 258]}
    rows = matching_rows(vocabulary, read_vocabulary(tmp_path), content, 259)
    assert rows[:259] == list(range(259))
    assert {name: rows[vocabulary.special[name]] for name in (BOS, IM_END, PAD, IM_START)} == {
        BOS: 256,
        IM_END: 258,
        PAD: 257,
        IM_START: None,
    }
    without = matching_rows(vocabulary, read_vocabulary(tmp_path), {"eos_token_id": 257}, 259)
    assert without[vocabulary.special[BOS]] == 257


def test_a_text_does_not_begin_as_a_message_does():
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    special = {"<|endoftext|>": 0, IM_START: 1, IM_END: 2}  # SmolLM2's
    assert stand_ins(ids, special, 3)[BOS] == 0
    assert stand_ins(ids, {IM_START: 1, IM_END: 2}, 3)[BOS] == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_a_variant_is_saved_as_what_it_is(tmp_path, shape):
    family, changes = SHAPES[shape]
    make(family, vocab_size=259, **changes).save_pretrained(tmp_path)
    write_tokenizer(tmp_path, sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    ours = load_initial(tmp_path, chat_vocabulary(tmp_path), 64)
    theirs, report = save(ours, tmp_path / "saved")
    assert theirs.config.model_type == family and not any(report.values())
    logits = ours(torch.tensor([IDS]))[0].detach()
    torch.testing.assert_close(logits, torch.from_numpy(logits_of(theirs, IDS)), atol=1e-4, rtol=1e-4)


def test_another_tokenizer_is_refused_with_numbers(tmp_path):
    write_external(tmp_path, "llama")
    words = tuple(f"word{i}".encode() for i in range(300))
    other = replace(VOCABULARY, tokens=(*VOCABULARY.tokens, *words), kinds=(*VOCABULARY.kinds, *[Kind.NORMAL] * 300))
    with pytest.raises(ValueError, match=r"its tokenizer has 256 of the 556 text tokens .*type: pretrained"):
        load_initial(tmp_path, other, 64)


def test_models_that_cannot_be_gone_on_from_are_told(tmp_path):
    (tmp_path / "model").mkdir()
    write_external(tmp_path / "model", "llama")
    vocabulary = chat_vocabulary(tmp_path / "model")
    with pytest.raises(ValueError, match=r"gone: no such folder or GGUF file of a model: in place of data/model, "):
        load_initial(tmp_path / "gone", vocabulary, 64)
    (tmp_path / "model/tokenizer.json").rename(tmp_path / "model/tokenizer.txt")
    with pytest.raises(ValueError, match=r"model: no such file: expected a tokenizer's folder or file"):
        load_initial(tmp_path / "model", vocabulary, 64)
    (tmp_path / "model/tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json: "):
        load_initial(tmp_path / "model", vocabulary, 64)
    rewrite(tmp_path / "model", model_type="gpt2")
    with pytest.raises(ValueError, match=r"config\.json: model_type 'gpt2': expected one of llama, mistral, qwen2"):
        load_initial(tmp_path / "model", vocabulary, 64)


def tokens_for(folder, vocabulary):
    """The short conversations, encoded by the tokenizer of a model."""
    write_tokens(folder)
    write_folder(vocabulary, folder / "own/tokenizer")
    files = folder / "train.jsonl", folder / "validation.jsonl", folder / "own/tokenizer"
    encode.main(*files, folder / "own/tokens", template="chatml")
    return write_teacher(folder / "own")


@pytest.mark.parametrize(
    ("family", "changes"), [("llama", {"rope_parameters": LLAMA3}), ("qwen2", WINDOW), ("qwen3", {})]
)
def test_the_stages_go_on_from_it_and_write_what_it_is(tmp_path, family, changes):
    (tmp_path / "theirs").mkdir()
    write_external(tmp_path / "theirs", family, hidden_size=64, head_dim=16, **changes)
    tokens = tokens_for(tmp_path, chat_vocabulary(tmp_path / "theirs"))
    initial = {"initial": tmp_path / "theirs"}
    run_training(tokens, tmp_path, steps=30, **initial)
    losses = [float(line["loss"]) for line in read_curve(tmp_path)]
    assert losses[-1] < 0.3 * losses[0]
    export_onnx.main(tmp_path / "model", tmp_path / "onnx", quantize=[])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert theirs.config.model_type == family
    for path in (tmp_path / "model", tmp_path / "onnx"):
        found = load_model(path, "cpu", 1).engine.sequence_logits(IDS)
        np.testing.assert_allclose(found, logits_of(theirs, IDS), atol=1e-4, rtol=1e-4)
