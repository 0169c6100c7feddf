import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import encode
from chatmill.conversation import Message, Record, render
from chatmill.model.chat_model import load_chat_model
from chatmill.soft_tokenizer.byte_embedding import use_byte_embedding
from chatmill.training.model_folder import read_byte_encoder
from support.tiny import VOCABULARY
from support.training_runs import (
    read_curve,
    run_training,
    write_teacher,
    write_tokens,
)

RESULTS = ("model/model.safetensors", "model/config.json", "model/manifest.json", "train.tsv")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(scope="module")
def trained(tokens, tmp_path_factory):
    return run_training(tokens, tmp_path_factory.mktemp("trained"), steps=60)


def test_it_learns_what_it_is_shown(trained):
    curve = read_curve(trained)
    assert [int(line["step"]) for line in curve] == list(range(1, 61))
    assert 1 < float(curve[0]["loss"]) < 2.5 < np.log(320)  # from counted bigrams
    assert float(curve[-1]["bits_per_byte"]) < 0.5
    assert float(curve[-1]["validation_bits_per_byte"]) < 0.5


def test_transformers_loads_the_model_with_its_tokenizer(trained):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(trained / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained / "model")
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "7?"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = theirs.generate(**prompt, max_new_tokens=20, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer).startswith("yes") and answer[-1] == VOCABULARY.special["<|im_end|>"]
    model, config = load_chat_model(trained / "model", torch.device("cpu"))
    ours = model(prompt["input_ids"]).detach()
    torch.testing.assert_close(ours, theirs(prompt["input_ids"]).logits.detach(), atol=1e-4, rtol=1e-4)
    assert config["chatmill"]["fingerprint"] == VOCABULARY.fingerprint


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_two_runs_write_equal_bytes(tokens, tmp_path, precision):
    first, second = (run_training(tokens, tmp_path / name, precision=precision, threads=2) for name in "ab")
    for name in RESULTS:
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_the_head_is_not_saved_twice_and_the_choices_are(trained):
    assert "lm_head.weight" not in load_file(trained / "model/model.safetensors")
    config = json.loads((trained / "model/config.json").read_text())
    chosen = {"depth": 1, "steps": 60, "prompt_loss_weight": 0.1, "device": "cpu", "processes": 1, "threads": 1}
    chosen |= {"template": "chatml", "tools": [], "embedding": "table", "precision": "float32", "compile": False}
    found = {"epochs": 6.8571, "kept_step": 60, "conversations": {"cut": 0, "rejected": 0}}
    unknown = {"fingerprint": 0, "padding": 0}
    assert config["chatmill"] | unknown == chosen | found | unknown


def test_three_answers_are_shown_at_the_end(tokens, tmp_path, capsys):
    run_training(tokens, tmp_path / "out", steps=20)
    shown = re.findall(r"train_model: '(6\d\?)' is answered '", capsys.readouterr().err)
    assert shown == ["60?", "61?", "62?"]


def test_a_context_shorter_than_all_conversations_is_told(tokens, tmp_path, capsys):
    run_training(tokens, tmp_path, context=12, steps=1)
    metadata = json.loads((tmp_path / "model/config.json").read_text())["chatmill"]
    assert metadata["conversations"] == {"cut": 60, "rejected": 0}
    cut = "60 conversations are longer than train_model.context = 12: only their last messages are read, "
    assert cut in capsys.readouterr().err


def test_it_goes_on_from_an_earlier_model(trained, tokens, tmp_path):
    run_training(tokens, tmp_path, initial=trained / "model", steps=1, depth=5)
    assert float(read_curve(tmp_path)[0]["bits_per_byte"]) < 0.5
    assert json.loads((tmp_path / "model/config.json").read_text())["chatmill"]["depth"] == 1


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_made_from_bytes_are_learnt_and_written_as_a_table(tokens, tmp_path, tied):
    run_training(tokens, tmp_path, steps=30, embedding="bytes", tie_embeddings=tied)
    assert float(read_curve(tmp_path)[-1]["bits_per_byte"]) < 0.5
    model, config = load_chat_model(tmp_path / "model", torch.device("cpu"))
    encoder = read_byte_encoder(tmp_path / "model")
    table = model.model.embed_tokens.weight.detach().clone()
    use_byte_embedding(model, encoder, VOCABULARY)
    torch.testing.assert_close(model.model.embed_tokens.weight.detach(), table)
    assert config["model_type"] == "qwen3" and config["tie_word_embeddings"] == tied


def test_settings_that_contradict_each_other_are_refused(tokens, tmp_path):
    with pytest.raises(ValueError, match=r"train_model.head_alignment = 1.0 .* tie_embeddings: false"):
        run_training(tokens, tmp_path, head_alignment=1.0)


def test_a_depth_that_does_not_fit_is_told_with_the_largest_that_does(tokens, tmp_path):
    with pytest.raises(ValueError, match=r"train_model.depth = 500 needs about .* GB .* \d+ is the largest that fits"):
        run_training(tokens, tmp_path, depth=500)


def test_a_loss_that_is_no_number_names_the_step(tokens, tmp_path):
    with pytest.raises(ValueError, match=r"step \d: the loss is nan: lower train_model.learning_rate"):
        run_training(tokens, tmp_path, learning_rate=1e30)


def test_nothing_to_train_on_is_refused(tokens, tmp_path):
    questions = Record("talk", "talk/1", render([Message.from_text("user", "why?")])).to_json()
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text(questions)
    files = tmp_path / "train.jsonl", tmp_path / "validation.jsonl", tokens / "tokenizer", tmp_path / "tokens"
    encode.main(*files, template="chatml")
    (tmp_path / "tokenizer").symlink_to(tokens / "tokenizer")
    with pytest.raises(ValueError, match="none of 1 conversations has anything to train on"):
        run_training(write_teacher(tmp_path), tmp_path / "out")
