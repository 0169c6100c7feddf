import json
import os
import subprocess
import sys

import pytest
import torch
import yaml

import train_soft_tokenizer
from chatmill.conversation import Message
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.model_loading import load_model
from chatmill.model.chat_model import load_chat_model
from chatmill.soft_tokenizer.byte_embedding import ByteEmbedding
from chatmill.soft_tokenizer.embedding_evaluation import embedding_table
from chatmill.tokenizer.types.bpe import Settings, train
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens, write_folder
from chatmill.training.model_folder import read_byte_encoder
from support.paths import ANY_FOLDER
from support.tiny import VOCABULARY
from support.training_runs import run_training as train_model
from support.training_runs import write_tokens

SETTINGS = {"width": 32, "layers": 1, "features": 64, "longest": 4, "steps": 10, "contrast": 0.1, "held_out": 0.2}
SETTINGS |= {"conversations": 5, "tune": 0, "other_tokenizer": None, "noise": True, "seed": 1, "threads": 2}
FOLDER = ("byte_encoder.safetensors", "config.json", "manifest.json", "model.safetensors")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = write_tokens(tmp_path_factory.mktemp("trained"))
    return train_model(folder, folder, steps=40)


@pytest.fixture(scope="module")
def plugged(trained, tmp_path_factory):
    return run(trained, tmp_path_factory.mktemp("plugged"))


def files(trained, out, model=None, tokenizer=None):
    chat = (trained / "train.jsonl", trained / "validation.jsonl")
    inputs = (*chat, trained / "tokens", tokenizer or trained / "tokenizer", model or trained / "model")
    return [*inputs, ANY_FOLDER, out / "soft_tokenizer", out / "soft_tokenizer.json"]


def run(trained, out, model=None, tokenizer=None, **changes):
    """The stage, called as a function."""
    out.mkdir(exist_ok=True)
    train_soft_tokenizer.main(*files(trained, out, model, tokenizer), parameters=SETTINGS | changes)
    return out


def options(paths):
    """A command line of these files."""
    names = ("train", "test", "tokens", "tokenizer", "model", "external", "soft-tokenizer", "metrics")
    return [str(part) for name, path in zip(names, paths, strict=True) for part in (f"--{name}", path)]


def metrics(out):
    return json.loads((out / "soft_tokenizer.json").read_text())


def test_the_folder_is_the_model_with_rows_that_its_network_makes(trained, plugged):
    soft, _ = load_chat_model(plugged / "soft_tokenizer", torch.device("cpu"))
    model, _ = load_chat_model(trained / "model", torch.device("cpu"))
    encoder = read_byte_encoder(plugged / "soft_tokenizer")
    expected = ByteEmbedding(encoder, VOCABULARY, embedding_table(model)).weight
    torch.testing.assert_close(embedding_table(soft), expected.detach())
    assert torch.equal(soft.model.layers[0].mlp.up_proj.weight, model.model.layers[0].mlp.up_proj.weight)


def test_the_folder_chats(plugged):
    loaded = load_model(plugged / "soft_tokenizer", device="cpu")
    message, _ = ChatSession(*loaded).greedy_reply([Message.from_text("user", "7?")], 4)
    assert loaded.engine.fingerprint == VOCABULARY.fingerprint and isinstance(message.text, str)


def test_the_metrics_are_those_of_rows_and_of_bits_per_byte(plugged):
    found = metrics(plugged)
    assert found["kept"]["tokens"] + found["held_out"]["tokens"] == found["all"]["tokens"] == 256
    assert found["held_out"]["nearest"]["chance"] == pytest.approx(1 / 256, abs=1e-6)
    assert set(found["bits_per_byte"]) == {"table", "plugged_in", "held_out", "held_out_mean"}
    assert found["bits_per_byte"]["plugged_in"]["all"] != found["bits_per_byte"]["table"]["all"]
    assert found["parameters"]["table"] == 320 * 64 and set(found["noisy"]) == {"typos", "case", "rare_words"}


def test_two_runs_write_equal_bytes(trained, plugged, tmp_path):
    again = run(trained, tmp_path)
    for name in (*(f"soft_tokenizer/{name}" for name in FOLDER), "soft_tokenizer.json"):
        assert (again / name).read_bytes() == (plugged / name).read_bytes()


def test_it_is_trained_on_with_its_own_tokenizer_and_with_another(trained, tmp_path):
    write_folder(add_special_tokens(train(["yes", "yesyes"], 258, Settings()), []), tmp_path / "other")
    changes = {"tune": 10, "other_tokenizer": tmp_path / "other/tokenizer.json"}
    found = metrics(run(trained, tmp_path / "out", **changes))
    tuned, other = found["bits_per_byte"]["tuned"], found["other_tokenizer"]
    assert tuned["all"] < found["bits_per_byte"]["plugged_in"]["all"]
    assert other["tuned"]["all"] < other["plugged_in"]["all"]


@pytest.mark.slow
def test_the_script_reports_errors_in_one_line(trained, tmp_path):
    section = SETTINGS | {"held_out": 1}
    params = {"threads": section.pop("threads"), "train_soft_tokenizer": section}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    command = [sys.executable, train_soft_tokenizer.__file__, *options(files(trained, tmp_path))]
    result = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith(
        "train_soft_tokenizer: params.yaml: train_soft_tokenizer.held_out: expected a number above 0 and below 1, got 1"
    )
