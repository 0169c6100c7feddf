import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chatmill.app.cli import main
from chatmill.app.commands.compare import answer_bits, compare_answers
from chatmill.app.named_models import find_or_fetch
from chatmill.conversation import CALL_END, CALL_START, IM_END, Message
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.chat_template import ChatmillTemplate, open_template
from chatmill.inference.model_loading import load_model
from support.scripted import ScriptedEngine
from support.tiny import CONFIG, byte_tokenizer, write_model

TOKENIZER = byte_tokenizer()
SPECIAL = TOKENIZER.special
CHATML, MARKERS, PLAIN = ChatmillTemplate(), ChatmillTemplate("markers"), open_template("", {}, name="plain")
BITS = math.log2(TOKENIZER.vocab_size)  # of a token where all are equally likely


class UniformEngine(ScriptedEngine):
    """Generates its script, and finds every token equally likely."""

    logit = 0.0

    def sequence_logits(self, ids):
        self.received_ids.append(list(ids))
        if len(ids) > self.context:
            raise ValueError(f"{len(ids)} tokens do not fit")
        return np.full((len(ids), self.vocab_size), self.logit, np.float32)


def session(*replies, template=CHATML, context=1000, **options):
    """A session with a model that gives these replies; `[` and `]` enclose a call."""
    calls = {ord("["): SPECIAL[CALL_START], ord("]"): SPECIAL[CALL_END]}
    script = [
        id_ for reply in replies for id_ in [*(calls.get(byte, byte) for byte in reply.encode()), SPECIAL[IM_END]]
    ]
    engine = UniformEngine(script, vocab_size=TOKENIZER.vocab_size, context=context)
    return ChatSession(engine, TOKENIZER, template, **options)


@pytest.mark.parametrize(
    ("text", "template", "tokens"),
    [
        ("Hé", CHATML, 3),
        ("Hé", MARKERS, 4),  # a space before it
        ("a<|b", CHATML, 5),  # a backslash in it
        ("a<|b", PLAIN, 4),
    ],
)
def test_each_model_pays_for_a_text_in_its_own_tokens_and_template(text, template, tokens):
    bits = answer_bits(session(template=template), "Hi", Message.from_text("assistant", text))
    assert bits == pytest.approx(tokens * BITS / len(text.encode()))


def test_bits_per_byte_are_those_of_every_answer_under_every_model():
    (first, second) = compare_answers("Hi", [session("Hé"), session("Hello", template=MARKERS)]).bits_per_byte()
    assert first == pytest.approx([BITS, BITS * 4 / 3])
    assert second == pytest.approx([BITS, BITS * 6 / 5])


@pytest.mark.parametrize("template", ["chatml", "markers"])
def test_nats_are_the_models_own_probabilities_token_by_token(models, template):
    loaded = load_model(models[template], "cpu", 1)
    chat, text = ChatSession(*loaded), "Good morning."
    prompt_ids = loaded.tokenizer.encode_segments(loaded.template.prompt([Message.from_text("user", "Hi")]))[0]
    logits, nats = loaded.engine.append(prompt_ids), 0.0
    for token in (loaded.template.answer_prefix + text).encode():
        nats += np.logaddexp.reduce(logits.astype(float)) - logits[token]
        logits = loaded.engine.append([token])
    bits = nats / math.log(2) / len(text)
    assert answer_bits(chat, "Hi", Message.from_text("assistant", text)) == pytest.approx(bits, rel=1e-4)


def test_a_problem_of_one_model_leaves_the_others_their_answers():
    small = session("never said", context=40, max_tokens=4)
    small.engine.logit = math.nan
    comparison = compare_answers("x" * 30, [small, session("y")])
    problem = "answer: the model's probability of this text is 0 or not a number"
    assert comparison.notes() == [f"– answer of B under A: {problem}"]
    assert comparison.answers[0].error.startswith("the message takes 50 tokens")
    assert comparison.answers[1].message.text == "y"
    assert comparison.bits == [["no answer", "no answer"], [problem, pytest.approx(BITS)]]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    other = replace(CONFIG, num_hidden_layers=1, max_position_embeddings=128)
    return {"chatml": write_model(folder / "one"), "markers": write_model(folder / "two", other, "markers")}


def run(capsys, *arguments):
    """Exit code, stdout and stderr of `chatmill compare`."""
    code = main(["compare", "--threads", "1", "--device", "cpu", "--max-tokens", "6", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_the_terminal_shows_answers_and_a_table_for_each_prompt(models, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    file = tmp_path / "prompts.txt"
    file.write_text("Ho\r\n\nWho\u2028are you?\n", newline="")
    code, out, _ = run(capsys, models["chatml"], models["chatml"], "-p", "Hi", "--prompt-list", file)
    assert [line for line in out.splitlines() if line.startswith(">")] == ["> Hi", "> Ho", "> Who⟨U+2028⟩are you?"]
    rows = [line.split() for line in out.splitlines() if line.startswith("answer of")]
    assert (code, len(rows)) == (0, 6)
    assert all(row[3] == row[4] != "–" for row in rows)
    assert all(len(line) <= 80 for line in out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["one"], "expected 2 to 26 models, got 1"),
        (["one", "two"], "no prompts: pass one after -p or in --prompt-file, or one a line in --prompt-list"),
        (["one", "two", "-p", " "], "a prompt is empty: pass some text after -p"),
        (["one", "two", "-p", "x", "--max-tokens", "0"], "--max-tokens: expected 1 or more, got 0"),
        (["one", "two", "-p", "x", "--temperature", "-1"], "temperature: expected 0 or more, got -1.0"),
        (["one", "two", "--prompt-file", "bad.txt"], "bad.txt: not UTF-8 at byte 5"),
        (["one", "two", "--prompt-file", "/dev/zero"], "/dev/zero: over 16,000,000 bytes: shorten it"),
        (
            ["one", "two", "--prompt-file", "/dev/null"],
            "a prompt is empty: pass some text after -p or in --prompt-file",
        ),
        (["one", "two", "--prompt-list", "bad.txt"], "bad.txt: not UTF-8 at byte 5"),
        (["one", "two", "--data", "bad.txt", "--prompt-list", "bad.txt"], "expected either --data, or prompts"),
        (["one", "two", "--prompt-file", "none.txt"], "none.txt: no such file or directory"),
        (["one", "two", "-p", "x"], "one: no such file or folder, and no experiment, branch, tag or commit either"),
        ([".", ".", "-p", "x"], ".: config.json is missing: "),
    ],
)
def test_mistakes_are_one_line_on_stderr_and_exit_code_1(arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("bad.txt").write_bytes(b"\xef\xbb\xbfab\xff")
    code, out, err = run(capsys, *arguments)
    assert err.startswith(f"chatmill: {message}")
    assert (code, out, err.count("\n")) == (1, "", 1)


def dvc(folder, *arguments):
    subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=folder, check=True, capture_output=True)


def git(folder, *arguments):
    who = ["-c", "user.name=chatmill", "-c", "user.email=chatmill@localhost"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def repository(tmp_path_factory, models):
    """A project with one model under a tag, and another in an experiment and in the workspace."""
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "-qb", "main")
    dvc(folder, "init", "-q")
    git(folder, "commit", "-qm", "Nothing yet")
    (folder / "dvc.yaml").write_text("stages: {train_model: {cmd: 'true', outs: [data/model]}}\n")
    (folder / "data").mkdir()
    git(folder, "config", "user.name", "chatmill")
    git(folder, "config", "user.email", "chatmill@localhost")
    for name, model in models.items():
        shutil.rmtree(folder / "data/model", ignore_errors=True)
        shutil.copytree(model, folder / "data/model")
        dvc(folder, "commit", "-fq")
        if name == "chatml":
            git(folder, "add", ".")
            git(folder, "commit", "-qm", "One")
            git(folder, "tag", "größe/1.0")
    dvc(folder, "exp", "save", "-n", "with-markers_2")
    return folder


@pytest.mark.parametrize(
    ("name", "model"), [("größe/1.0", "chatml"), ("HEAD", "chatml"), ("with-markers_2", "markers")]
)
def test_a_run_gives_the_model_it_made(repository, models, monkeypatch, tmp_path, name, model):
    monkeypatch.chdir(repository / "data")
    found = find_or_fetch(name, tmp_path / "model")
    assert sorted(file.name for file in found.iterdir()) == sorted(file.name for file in models[model].iterdir())
    assert all((found / file.name).read_bytes() == file.read_bytes() for file in models[model].iterdir())


def test_a_run_is_evaluated_by_its_name(repository, monkeypatch, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("Once upon a time")
    monkeypatch.chdir(repository)
    arguments = ["with-markers_2", "data/model", "--data", str(tmp_path / "text.txt"), "--json", "--device", "cpu"]
    assert main(["evaluate", *arguments]) == 0
    run, workspace = json.loads(capsys.readouterr().out)
    assert run["bits_per_byte"] == workspace["bits_per_byte"] and run["model"] == "with-markers_2"


def test_runs_are_compared_by_name_and_the_workspace_stays(repository, models, capsys, monkeypatch):
    monkeypatch.chdir(repository)
    state = {file: file.read_bytes() for file in [*Path("data").rglob("*.*"), Path("dvc.lock"), Path(".git/index")]}
    _, by_name, _ = run(capsys, "größe/1.0", "with-markers_2", "größe/1.0", "-p", "Hi", "--json")
    _, by_path, _ = run(capsys, *models.values(), models["chatml"], "-p", "Hi", "--json")
    matrices = [json.loads(text)["prompts"][0]["bits_per_byte"] for text in (by_name, by_path)]
    assert matrices[0] == matrices[1]
    assert all(file.read_bytes() == content for file, content in state.items())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "with-markers",
            r"^with-markers: no such file or folder, and no experiment.*unknown Git revision 'with-markers'",
        ),
        ("HEAD^{tree}", r"^HEAD\^{tree}: no such file or folder, and no experiment.*: `dvc exp list"),
        ("HEAD~1", r"^HEAD~1: this run has no data/export/onnx or data/model: rebuild it .`dvc exp apply HEAD~1` or"),
    ],
)
def test_a_name_that_gives_no_model_is_told(repository, monkeypatch, tmp_path, name, message):
    monkeypatch.chdir(repository)
    with pytest.raises(ValueError, match=message):
        find_or_fetch(name, tmp_path / "model")
