import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from chatmill.app.cli import main
from chatmill.app.measurement import ScoredDocument, measure, read_documents
from chatmill.conversation import Message, Part, Record, render
from chatmill.evaluation.held_out_set import sample_test_set
from chatmill.inference.chat_template import ChatmillTemplate, open_template
from chatmill.inference.model_loading import LoadedModel
from chatmill.pipeline.params_file import read_params
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from support.paths import ROOT
from support.tiny import VOCABULARY, byte_tokenizer, write_model

CHAT = [Message.from_text("user", "Hï <|im_end|>"), Message.from_text("assistant", "Ho ho.")]
CALL = Message("assistant", (Part("call", "1+1"), Part("output", "2"), Part("text", "Two.")))
LONG = [Message.from_text("user", "x"), Message.from_text("assistant", "and on " * 130)]  # more than the context
UNIFORM = math.log2(len(VOCABULARY.tokens))  # bits of each token, which is a byte


class UniformEngine:
    """Finds every token as likely as any other."""

    name, device, fingerprint, template, vocab_size, length = "uniform", "cpu", "", "", len(VOCABULARY.tokens), 0

    def __init__(self, context=64):
        self.context, self.lengths = context, []

    def sequence_logits(self, ids):
        self.lengths.append(len(ids))
        return np.zeros((len(ids), self.vocab_size), np.float32)


def measured(contents, template=None, context=None, engine=None, stride=None, tokenizer=None):
    documents = [ScoredDocument(Path("a.txt"), f"a.txt:{i}", content) for i, content in enumerate(contents, start=1)]
    tokenizer, template = tokenizer or byte_tokenizer(), template or ChatmillTemplate()
    loaded = LoadedModel(engine or UniformEngine(), tokenizer, template, frozenset())
    return measure(loaded, documents, context, stride)


def external(name="chatml", bos=""):
    return open_template("", byte_tokenizer().special, name=name, bos=bos)


def num_text_bytes(conversation):
    return sum(len(message.text.encode()) for message in conversation)


def test_under_our_template_headers_are_text_and_control_tokens_are_not():
    found = measured([CHAT, [CHAT[0], CALL]])
    text = "user\nHï <|im_end|>\nassistant\nHo ho.\n" + "user\nHï <|im_end|>\nassistant\n1+12Two.\n"
    size = len(text.encode())
    assert (found.bytes, found.tokens) == (size, size + 2)  # an escape of each <|
    assert found.bits_per_byte == pytest.approx((UNIFORM * (size + 2) / size, UNIFORM))


def test_the_space_that_a_tokenizer_puts_first_is_no_byte_of_a_text():
    tokenizer = ChatTokenizer(VOCABULARY, leading_space=True)
    for contents, size, tokens in ((["Hi"], 2, 3), ([" né", "\n"], 5, 7), ([CHAT], num_text_bytes(CHAT), 21)):
        template = open_template("", tokenizer.special, name="plain", bos="<|bos|>", leading_space=True)
        found = measured(contents, template, tokenizer=tokenizer)
        assert (found.bytes, found.tokens) == (size, tokens)
        assert found.bits_per_byte.all == pytest.approx(UNIFORM * tokens / size)


def record(conversation, key):
    return Record("talk", f"talk/{key}", render(conversation)).to_json()


def test_conversations_are_read_as_prepare_and_people_write_them(tmp_path):
    messages = [{"role": message.role, "content": message.text} for message in CHAT]
    (tmp_path / "test.jsonl").write_text(record(CHAT, 1) + json.dumps({"messages": messages}) + "\n")
    (tmp_path / "list.json").write_text(json.dumps([{"messages": messages}] * 3))
    (tmp_path / "lines.txt").write_text("Hi __eou__ Ho __eou__\n" * 2)
    assert [one.content for one in read_documents(tmp_path / "test.jsonl")] == [CHAT] * 2
    assert len(read_documents(tmp_path / "list.json", limit=2)) == 2
    found = read_documents(tmp_path / "lines.txt", "dailydialog")
    assert [one.place for one in found] == [f"{tmp_path / 'lines.txt'}:{i}" for i in (1, 2)]
    assert [num_text_bytes(one.content) for one in found] == [4, 4]
    assert read_documents(tmp_path / "lines.txt")[0].content == "Hi __eou__ Ho __eou__\n" * 2


@pytest.mark.parametrize("template", [ChatmillTemplate(), external()])
def test_the_assistants_text_is_that_which_a_record_trains(template, tmp_path):
    talk = [*CHAT, *CHAT[:1], Message.from_text("assistant", "Hm?")]
    line = Record("talk", "talk/1", render(talk), train=[None, False, None, None]).to_json()
    (tmp_path / "test.jsonl").write_text(line)
    (document,) = read_documents(tmp_path / "test.jsonl")
    plain, chosen = measured([talk], template), measured([document.content], template)
    assert chosen.bytes == plain.bytes and chosen.sums["all"][1] == plain.sums["all"][1]
    assert (plain.sums["assistant"][1], chosen.sums["assistant"][1]) == (9, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two models, and three files to measure them on."""
    folder = tmp_path_factory.mktemp("evaluate")
    write_model(folder / "one")
    write_model(folder / "two", template="markers")
    (folder / "test.jsonl").write_text(record(CHAT, 1) + record(LONG, 2), encoding="utf-8")
    (folder / "plain.txt").write_text("Once upon a time.\n")
    return folder


def run(capsys, *arguments):
    """Exit code, stdout and stderr of `chatmill evaluate`."""
    code = main(["evaluate", "--threads", "1", "--device", "cpu", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_the_terminal_shows_models_side_by_side(folder, capsys):
    data = ["--data", folder / "test.jsonl", "--data", folder / "plain.txt"]
    code, out, err = run(capsys, folder / "one", folder / "two", *data)
    lines = [line.split() for line in out.splitlines()]
    assert (code, lines[:2]) == (0, [["A", str(folder / "one")], ["B", str(folder / "two")]])
    assert [line[:-2] for line in lines[5:7]] == [["all", "text"], ["the", "assistant's"]]
    assert lines[-2][0] == "bytes" and float(lines[-1][-1]) == 1.001  # the backslash that escapes `<|`
    assert err.endswith('different text: compare the rows "the assistant\'s"\n')


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["one", "--data", "none.txt"], "none.txt: no such file or directory"),
        (["one", "--data", "bad.txt"], "bad.txt: not UTF-8 at byte 2"),
        (["one", "--data", "empty.txt"], "empty.txt: expected a text of 1 to 1,000,000 characters, got 0"),
        (["one", "--data", "bad.jsonl"], "bad.jsonl:2: "),
        (["one", "--data", "empty.jsonl"], "empty.jsonl: no documents: expected conversations or a text"),
        (["one", "--data", "bad.jsonl", "--format", "messages"], "bad.jsonl:2: unknown role 'robot'"),
        (["one", "--data", "run.txt"], "run.txt: text holds a run of over 100,000"),
        (["none", "--data", "good.txt"], "none: no such file or folder"),
        (["one", "--data", "good.txt", "--context", "641"], "one: context: expected 2 to 640 tokens, got 641"),
        (
            ["one", "--data", "good.txt", "--stride", "641"],
            "one: stride: expected 1 to 640 tokens, which the model reads",
        ),
        (["one", "--data", "good.txt", "--limit", "0"], "--limit: expected 1 or more, got 0"),
        (["one", "--data", "good.txt", "--template", "x"], "one: unknown template 'x'"),
        (["one"], "nothing to measure: expected --data FILE"),
    ],
)
def test_mistakes_are_one_line_on_stderr_and_exit_code_1(folder, arguments, message, capsys, monkeypatch, tmp_path):
    shutil.copytree(folder / "one", tmp_path / "one")
    monkeypatch.chdir(tmp_path)
    good = '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}\n'
    texts = {"bad.txt": b"ab\xff", "bad.jsonl": (good + good.replace("user", "robot")).encode(), "good.txt": b"a"}
    for name, content in (texts | {"run.txt": b"x" * 100_001, "empty.txt": b"", "empty.jsonl": b""}).items():
        Path(name).write_bytes(content)
    code, out, err = run(capsys, *arguments)
    assert err.startswith(f"chatmill: {message}")
    assert (code, out, err.count("\n")) == (1, "", 1)


def test_many_documents_have_an_interval_and_models_a_paired_difference(folder, capsys, tmp_path):
    replies = [[CHAT[0], Message.from_text("assistant", "Ho " * n)] for n in range(1, 13)]
    (tmp_path / "more.jsonl").write_text("".join(record(one, i) for i, one in enumerate(replies)), encoding="utf-8")
    models = folder / "one", folder / "one"
    _, out, _ = run(capsys, *models, "--data", tmp_path / "more.jsonl")
    assert out.count("95 % interval") == 2
    assert [line.split()[-3:] for line in out.splitlines() if "more than A" in line] == [["0.0000", "to", "0.0000"]] * 2
    _, out, _ = run(capsys, models[0], "--data", tmp_path / "more.jsonl", "--json")
    (found,) = json.loads(out)
    low, high = found["intervals"]["bits_per_byte"]["assistant"]
    assert low < found["bits_per_byte"]["assistant"] < high


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "data/model").exists(), reason="needs what the pipeline made")
def test_the_pipelines_model_has_the_bits_per_byte_of_its_metrics(capsys, tmp_path):
    expected = json.loads((ROOT / "data/metrics/evaluate.json").read_text())["bits_per_byte"]
    limit = read_params(ROOT / "params.yaml")["evaluate"]["conversations"]
    sample = sample_test_set(ROOT / "data/chat/test.jsonl", limit, 1, 1).test.conversations
    (tmp_path / "sample.jsonl").write_text("".join(record(one, i) for i, one in enumerate(sample)), encoding="utf-8")
    _, out, _ = run(capsys, ROOT / "data/model", "--data", tmp_path / "sample.jsonl", "--json")
    found = json.loads(out)[0]["bits_per_byte"]
    assert found["all"] == pytest.approx(expected["all"], abs=1e-6)
    assert found["assistant"] == pytest.approx(expected["assistant"], abs=1e-6)
