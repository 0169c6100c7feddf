"""Models of any origin are loaded with their tokenizer, template and stop ids."""

import json
import shutil

import pytest

from chatmill.conversation import Message, parse
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.chat_template import ChatmillTemplate
from chatmill.inference.model_loading import load_model
from chatmill.record_files import read_records
from export_onnx import main as export
from support.paths import ROOT
from support.tiny import VOCABULARY, byte_tokenizer, write_model

DATA = ROOT / "data"
OURS = ("manifest.json", "chatmill_tokenizer.json", "chat_template.jinja", "tokenizer_config.json")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loading")
    export(write_model(folder / "model"), folder / "onnx", quantize=[])
    return folder


@pytest.fixture
def external(models, tmp_path):
    """The model as another program would write it: weights, config.json, tokenizer.json and generation_config.json."""
    folder = shutil.copytree(models / "model", tmp_path / "external", ignore=shutil.ignore_patterns(*OURS))
    config = json.loads((folder / "config.json").read_text())
    del config["chatmill"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_model_without_a_chat_template_continues_text(external):
    loaded = load_model(external, device="cpu", threads=1)
    assert (loaded.template.name, loaded.engine.fingerprint) == ("plain", "")
    session = ChatSession(*loaded, max_tokens=8)
    answer = "".join(session.ask("Once upon"))
    assert session.prompt_ids == byte_tokenizer().encode("Once upon")
    assert "".join(session.ask(" then")) != answer
    assert session.tokenizer.decode(session.prompt_ids).startswith("Once upon" + answer)


def test_a_chat_template_is_run_and_another_can_be_chosen(external):
    (external / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}")
    prompt = load_model(external, device="cpu", threads=1).template.prompt([Message.from_text("user", "Hi")])
    assert "".join(segment.text for segment in prompt) == "user: Hi"
    assert load_model(external, device="cpu", threads=1, template="markers").template == ChatmillTemplate("markers")
    (external / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(ValueError, match=r"its chat template does not write what is said: choose one with --template"):
        load_model(external, device="cpu", threads=1)


def test_a_tokenizer_beside_the_model_is_found_and_another_can_be_named(external, models, tmp_path):
    (external / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"external: no tokenizer beside the model: name one with --tokenizer"):
        load_model(external, device="cpu", threads=1)
    loaded = load_model(external, device="cpu", threads=1, tokenizer=models / "model" / "tokenizer.json")
    assert loaded.tokenizer.fingerprint == VOCABULARY.fingerprint


def test_another_tokenizer_than_the_models_needs_to_be_trusted(models, tmp_path):
    wider = json.loads((models / "model" / "tokenizer.json").read_text())
    wider["added_tokens"][-1]["content"] = "<|other|>"
    (tmp_path / "tokenizer.json").write_text(json.dumps(wider))
    options = {"device": "cpu", "threads": 1, "tokenizer": tmp_path / "tokenizer.json"}
    with pytest.raises(ValueError, match=r"is not the one the model was trained with"):
        load_model(models / "model", **options)
    assert load_model(models / "model", **options, trust_tokenizer=True).engine.name == "pytorch"


@pytest.mark.parametrize(
    ("name", "message"), [("config.json", "config.json"), ("model.safetensors", "model.safetensors")]
)
@pytest.mark.parametrize("damage", ["cut", "gone", "flipped"])
def test_a_model_with_a_file_missing_or_corrupted_is_refused(models, tmp_path, name, message, damage):
    folder = shutil.copytree(models / "model", tmp_path / "model")
    content = bytearray((folder / name).read_bytes())
    content[-5] ^= 255
    (folder / name).write_bytes(content[:-9] if damage == "cut" else content)
    if damage == "gone":
        (folder / name).unlink()
    with pytest.raises(ValueError, match=message):
        load_model(folder, device="cpu", threads=1)


def greedy_answers(paths, prompts, max_tokens):
    """The answers of each engine, with its cache and without."""
    answers = {}
    for path in paths:
        loaded = load_model(path, device="cpu", threads=1)
        for engine in (loaded.engine, Recomputing(loaded.engine)):
            session = ChatSession(engine, *loaded[1:], max_tokens=max_tokens)
            answers[loaded.engine.name, engine is loaded.engine] = [answer_alone(session, text) for text in prompts]
    return answers


@pytest.mark.slow
def test_greedy_answers_are_the_same_on_every_engine_with_and_without_cache(models):
    prompts = [f"What is {n} + {n * n % 7}?" + " Please." * (n % 4) for n in range(100)]
    paths = (models / "model", models / "onnx", models / "onnx" / "model.onnx")
    first, *others = greedy_answers(paths, prompts, 12).values()
    assert [found == first for found in others] == [True] * 5
    assert len(set(first)) > 10


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "export/onnx/model.onnx").exists(), reason="no model was made here: run `dvc repro`")
def test_greedy_answers_of_the_pipelines_model_are_the_same_on_every_engine_with_and_without_cache():
    records = list(read_records(DATA / "chat/test.jsonl"))
    prompts = [parse(records[i * len(records) // 100].text)[-2].text for i in range(100)]
    paths = (DATA / "model", DATA / "export/onnx", DATA / "export/onnx/model.onnx")
    first, *others = greedy_answers(paths, prompts, 40).values()
    assert [found == first for found in others] == [True] * 5
    assert len(set(first)) > 30


class Recomputing:
    """An engine without a cache: it reads all ids again for each token."""

    def __init__(self, engine):
        self.engine, self.ids = engine, []

    def __getattr__(self, name):
        return getattr(self.engine, name)

    @property
    def length(self):
        return len(self.ids)

    def append(self, ids):
        self.ids += ids
        self.engine.rewind(0)
        return self.engine.append(self.ids)

    def rewind(self, length):
        del self.ids[length:]


def answer_alone(session, prompt):
    session.clear()
    return "".join(session.ask(prompt))
