import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chatmill.inference.model_loading import ONNX_FILES, engine_names, load_engine, load_model
from chatmill.onnx_export import decoder_graph
from chatmill.pipeline.manifest import write_manifest
from chatmill.tokenizer.types.byte import Settings, train
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens, write_folder
from export_onnx import main as export
from support.paths import SOURCE
from support.tiny import CONFIG, VOCABULARY, random_model, write_model

EXACT = ["pytorch", "onnx", "onnx_hf"]
each_engine = pytest.mark.parametrize("name", [*EXACT, "onnx_int8", "onnx_int4"])
MODEL = random_model()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    write_model(folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder_graph, "_ACCURACY", 1)  # activations of int8 and int4 stay float32: logits are equal
        export(folder / "model", folder / "onnx", quantize=["int8", "int8_dynamic", "int4"])
    return {"pytorch": folder / "model"} | dict.fromkeys(ONNX_FILES, folder / "onnx")


@pytest.fixture(scope="module")
def opened(folders):
    return {name: load_engine(folder, name, device="cpu", threads=1) for name, folder in folders.items()}


def some_ids(count):
    return np.random.default_rng(count).integers(0, CONFIG.vocab_size, count).tolist()


@torch.inference_mode()
def expected(ids):
    return MODEL(torch.tensor([ids]))[0].numpy()


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=20)
@given(steps=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 40)), max_size=6))
def test_any_appends_and_rewinds_give_the_logits_of_the_whole_sequence(opened, name, steps):
    engine, ids = opened[name], []
    engine.rewind(0)
    for count, back in steps:
        length = max(0, len(ids) - back)
        engine.rewind(length)
        ids = ids[:length] + some_ids(count)
        np.testing.assert_allclose(engine.append(ids[length:]), expected(ids)[-1], atol=1e-4)
        assert engine.length == len(ids)


@each_engine
def test_scores_are_the_logits_of_appending_one_by_one(opened, name):
    engine, ids = opened[name], some_ids(30)
    scores = engine.sequence_logits(ids)
    assert scores.shape == (30, CONFIG.vocab_size)
    assert scores.dtype == np.float32
    assert engine.length == 0
    np.testing.assert_allclose([engine.append([token]) for token in ids], scores, atol=1e-4)


@each_engine
def test_the_context_can_be_filled_and_not_overrun(opened, name):
    engine = opened[name]
    engine.rewind(0)
    engine.append(some_ids(CONFIG.max_position_embeddings))
    with pytest.raises(ValueError, match="641 tokens, but the model's context is 640: give it a shorter text"):
        engine.append([1])
    with pytest.raises(ValueError, match="641 tokens"):
        engine.sequence_logits(some_ids(641))


@each_engine
def test_ids_outside_the_vocabulary_and_rewinding_forward_are_refused(opened, name):
    engine = opened[name]
    engine.rewind(0)
    with pytest.raises(ValueError, match="expected 0 to 319"):
        engine.append([320])
    with pytest.raises(ValueError, match="no token ids"):
        engine.append([])
    with pytest.raises(ValueError, match="cannot rewind to 1 tokens: the cache holds 0"):
        engine.rewind(1)


@each_engine
def test_engines_say_what_they_are(opened, name):
    engine = opened[name]
    assert (engine.name, engine.vocab_size, engine.context) == (name, 320, 640)
    assert (engine.fingerprint, engine.template) == (VOCABULARY.fingerprint, "chatml")
    assert str(engine.device) == "cpu"


def test_a_folder_opens_with_the_engine_it_is_for(folders):
    assert load_model(folders["pytorch"], threads=1).engine.name == "pytorch"
    assert load_model(folders["onnx"], threads=1).engine.name == "onnx"
    assert load_model(folders["onnx"] / "model.onnx", threads=1).engine.name == "onnx_hf"
    assert engine_names(folders["onnx"]) == list(ONNX_FILES)
    assert engine_names(folders["pytorch"]) == []


def test_what_is_missing_damaged_or_foreign_is_named(folders, tmp_path):
    with pytest.raises(ValueError, match=r"nowhere: no such model"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="unknown engine 'jax': expected one of pytorch, onnx, onnx_hf"):
        load_engine(folders["onnx"], "jax")
    with pytest.raises(ValueError, match=r"model\.onnx is missing"):
        load_engine(tmp_path, "onnx_hf")
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(ValueError, match=r"model\.onnx: ONNX Runtime cannot read it"):
        load_engine(tmp_path, "onnx_hf")


@pytest.mark.parametrize("device", ["abacus", "xpu:7"])
def test_a_device_that_is_not_there_is_named(folders, device):
    with pytest.raises(ValueError, match=f"^device '{device}': not available: expected one of auto, cpu"):
        load_engine(folders["pytorch"], "pytorch", device=device)


def test_a_tokenizer_the_model_was_not_trained_with_is_refused(tmp_path):
    folder = write_model(tmp_path / "model")
    (folder / "manifest.json").unlink()
    write_folder(add_special_tokens(train([], 256, Settings()), ["<|other|>"]), folder)
    write_manifest(folder, kind="model", fingerprint="")
    with pytest.raises(ValueError, match=r"model: its tokenizer \(\w+\) is not the one the model was trained with"):
        load_model(folder)


def test_an_export_chats_where_torch_and_dvc_are_not_installed(folders):
    program = f"""
import sys
sys.modules.update(dict.fromkeys(["torch", "dvc", "onnx", "transformers"]))  # importing them fails
from chatmill.app.cli import main
sys.exit(main(["chat", "--model", {str(folders["onnx"])!r}, "-p", "Hi", "--max-tokens", "4", "--threads", "1"]))
"""
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds what a process takes")
@pytest.mark.parametrize("name", ["pytorch", "onnx"])
def test_memory_that_is_used_up_is_told_and_the_engine_goes_on(name, tmp_path):
    config = replace(CONFIG, vocab_size=50_048, max_position_embeddings=2048)
    folder = write_model(tmp_path / "model", config)
    if name != "pytorch":
        export(folder, tmp_path / "onnx", quantize=[])
        folder = tmp_path / "onnx"
    program = f"""
import resource
from pathlib import Path
from chatmill.inference.model_loading import load_engine
engine = load_engine(Path({str(folder)!r}), {name!r}, device="cpu", threads=1)
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 100_000_000,) * 2)
try:
    engine.sequence_logits([1] * 2000)  # 400 MB of logits
except MemoryError as error:
    print(error)
print(engine.length, engine.append([1]).shape)
"""
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    message = "out of memory on cpu: shorten the conversation (/clear), or lower max_tokens, or use a smaller model"
    assert (result.stdout, result.returncode) == (f"{message}\n0 (50048,)\n", 0), result.stderr
