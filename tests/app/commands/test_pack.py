import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from huggingface_hub import ModelCard

import export_gguf
import export_onnx
import export_tokenizer
from chatmill.app.cli import main
from chatmill.app.commands.pack import model_card
from chatmill.tokenizer.types import bpe
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens, write_folder
from chatmill.training.model_folder import write_model
from support.texts import SAMPLE_TEXT
from support.tiny import CONFIG, random_model

BPE = add_special_tokens(bpe.train([SAMPLE_TEXT * 2], 400, bpe.Settings()), [])


def make_data(folder, vocabulary=BPE):
    """A small model, its exports and metrics, as the pipeline leaves them."""
    write_folder(vocabulary, folder / "tokenizer")
    model = random_model(replace(CONFIG, vocab_size=len(vocabulary.tokens)))
    metadata = {"template": "chatml", "tools": ["calculator"], "steps": 1150}
    write_model(folder / "model", model, folder / "tokenizer", vocabulary, metadata)
    (folder / "export").mkdir()
    export_onnx.main(folder / "model", folder / "export/onnx", quantize=["int8"])
    export_gguf.main(folder / "model", folder / "export/gguf", quantize=["q8_0"])
    formats = ["binary", "tiktoken_pickle", "huggingface"]
    export_tokenizer.main(folder / "tokenizer", folder / "export/tokenizer", formats=formats)
    (folder / "metrics").mkdir()
    counts = {"messages": {"kept": 1200}, "bytes": {"kept": 34_000}}
    mix = {"read": {"talk": counts, "a|b": counts}, "conversations": {"train": 1100, "validation": 10, "test": 2000}}
    (folder / "metrics/mix.json").write_text(json.dumps(mix))
    found = {
        "bits_per_byte": {"all": 0.75, "baselines": {"xz": 1.5}},
        "tokenizer": {"fingerprint": vocabulary.fingerprint},
    }
    found |= {"intervals": {"bits_per_byte": {"all": [0.7, 0.8]}}, "counts": {"bits_per_byte": {"all": 2000}}}
    (folder / "metrics/evaluate.json").write_text(json.dumps(found))
    (folder / "samples.jsonl").write_text('{"prompt": "Who\\nare you?", "answer": "# A mill.", "stopped": true}\n' * 12)
    (folder / "raw").mkdir()
    (folder / "raw/licenses.yaml").write_text("talk: CC-BY-4.0\n")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("pack") / "data")


@pytest.fixture(scope="module")
def packed(data):
    out = data.with_name("packed")
    assert main(["pack", str(out), "--data", str(data), "--name", "Mill"]) == 0
    return out


@pytest.fixture
def copy(data, tmp_path):
    """The data, to be changed."""
    shutil.copytree(data, tmp_path / "data")
    return tmp_path / "data"


def test_each_runtime_finds_its_files(packed, data):
    for name in ("config.json", "model.safetensors", "tokenizer.json", "onnx/model.onnx", "onnx/model_quantized.onnx"):
        assert (packed / name).is_file()
    assert sorted(file.name for file in (packed / "gguf").iterdir()) == [
        "Modelfile",
        "model-f32.gguf",
        "model-q8_0.gguf",
    ]
    for name in ("model_genai.onnx", "model_shared.onnx", "genai_config.json", "tokenizer.json"):
        assert (packed / "genai" / name).read_bytes() == (data / "export/onnx" / name).read_bytes()
    assert (packed / "tokenizer/tokenizer.bin").is_file()
    assert (packed / "qwen3c/model.bin").read_bytes()[:4] == b"1cja"
    assert "\nrunq ./qwen3c/model.bin -t 0\n" in (packed / "README.md").read_text()
    assert (packed / "chat.html").read_bytes().startswith(b"<!doctype html>")
    assert json.loads((packed / "config.json").read_text())["transformers.js_config"] == {"dtype": "fp32"}
    assert not [file for file in packed.rglob("*") if file.is_symlink() or file.name == "manifest.json"]


def test_the_card_has_the_data_and_the_figures(packed):
    card = ModelCard.load(packed / "README.md")
    fields, text = card.data, card.text
    assert (fields.library_name, fields.pipeline_tag) == ("transformers", "text-generation")
    assert (fields.tags, fields.license, fields.language) == (["chatmill", "gguf", "onnx"], None, None)
    [result] = fields.eval_results
    assert (fields.model_name, result.task_type, result.dataset_split) == ("Mill", "text-generation", "test")
    assert (result.metric_type, result.metric_value) == ("bits_per_byte.all", 0.75)
    assert result.metric_name == "bits per byte, all text (95 %: 0.700 to 0.800)"
    assert text.startswith("\n# Mill\n")
    assert text.count("\n    > Who\n    are you?\n    # A mill.\n") == 10
    assert "Trained on 1,100 conversations, measured on 2,000 others" in text
    assert text.endswith("```sh\ndvc repro\nchatmill pack OUT --name Mill\n```\n")
    assert "| talk | 1,200 | 34,000 | CC-BY-4.0 |\n| a\\|b | 1,200 | 34,000 | not stated |" in text
    assert "| bits per byte, all text | 0.750 | 0.700 to 0.800 | 2000 |" in text
    assert "skills" not in text and "sensible" not in text  # which was not measured


@pytest.mark.parametrize(
    ("told", "license", "language", "datasets"),
    [
        ("", None, None, None),
        ("talk: MIT\na|b: MIT\n", "mit", None, None),
        (
            "talk: {license: CC0-1.0, language: de}\na|b: {language: [fr, de], dataset: us/it}\n",
            None,
            ["de", "fr"],
            ["us/it"],
        ),
        ("talk: {license: MIT, language: en}\na|b: {license: CC-BY-4.0, language: en}\n", "other", ["en"], None),
    ],
)
def test_the_head_of_the_card_has_what_is_told_of_the_sources(copy, told, license, language, datasets):
    (copy / "raw/licenses.yaml").write_text(told)
    fields = ModelCard(model_card(copy, "Mill", [], {})).data
    assert (fields.license, fields.language, fields.datasets) == (license, language, datasets)
    assert fields.license_name == ("mit-and-cc-by-4.0" if license == "other" else None)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: shutil.rmtree(data / "model"), "model: no such folder: run `dvc repro`"),
        (lambda data: (data / "model/manifest.json").unlink(), "manifest.json is missing"),
        (lambda data: (data / "model/model.safetensors").write_bytes(b"x"), "model.safetensors"),
        (lambda data: (data / "export/onnx/model.onnx").write_bytes(b"x"), "model.onnx"),
        (lambda data: (data / "metrics/evaluate.json").unlink(), "evaluate.json: no such file: the card needs it"),
        (lambda data: (data / "samples.jsonl").unlink(), "samples.jsonl: no such file: the card needs it"),
        (lambda data: (data / "raw/licenses.yaml").write_text("- MIT"), "licenses.yaml: expected one section for each"),
        (lambda data: (data / "metrics/evaluate.json").write_text("{}"), "of another tokenizer than the model's"),
    ],
)
def test_a_state_that_is_incomplete_or_mixed_is_refused(copy, damage, message, capsys):
    damage(copy)
    assert main(["pack", str(copy.parent / "out"), "--data", str(copy)]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (copy.parent / "out").exists()


@pytest.mark.slow
def test_the_commands_of_the_card_work(packed):
    """Those of Python; benchmarks run the others."""
    pytest.importorskip("onnxruntime_genai")
    card = (packed / "README.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        found = subprocess.run([sys.executable, "-c", program], cwd=packed, check=True, capture_output=True, text=True)
        assert found.stdout
    [command] = re.findall(r"```sh\nchatmill (chat .*?)\n```", card)
    arguments = [argument.strip("'") for argument in re.findall(r"'[^']*'|\S+", command)]
    found = subprocess.run(
        [sys.executable, "-m", "chatmill.app.cli", *arguments], cwd=packed, check=True, capture_output=True
    )
    assert found.stdout
