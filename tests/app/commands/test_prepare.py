import gzip
import json
import subprocess
import sys

import pyarrow
import pytest
import yaml
import zstandard
from pyarrow import ipc

from chatmill.app.cli import main
from chatmill.datasets.formats.registry import read_dataset
from chatmill.pipeline.params_file import read_params
from chatmill.tokenizer.vocabulary.tokenizer_folder import write_folder
from support.paths import ROOT
from support.tiny import byte_tokenizer

ROWS = [
    {"chat": [{"who": "customer", "what": f"Where is order {i}?"}, {"who": "agent", "what": f"It is at {i}."}]}
    for i in range(60)
]
SECTION = {
    "format": "table",
    "columns": {"messages": "chat", "role": "who", "content": "what"},
    "roles": {"user": "customer", "assistant": "agent"},
}


def lines(rows=ROWS):
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def arrow(rows=ROWS):
    sink, table = pyarrow.BufferOutputStream(), pyarrow.Table.from_pylist(rows)
    with ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def look(capsys, path, *options):
    code = main(["prepare", "--look", str(path), *map(str, options)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("x.jsonl", lines(), "JSON lines"),
        ("x.json", json.dumps(ROWS, indent=1).encode(), "a JSON array"),
        ("x.jsonl.gz", gzip.compress(lines()), "JSON lines, compressed by gzip"),
        ("x.jsonl.zst", zstandard.compress(lines()), "JSON lines, compressed by zstd"),
        ("x.arrow", arrow(), "Arrow"),
    ],
)
def test_the_section_is_alone_on_stdout_and_all_else_on_stderr(name, content, kind, tmp_path, capsys):
    (tmp_path / name).write_bytes(content)
    code, section, shown = look(capsys, tmp_path / name)
    assert yaml.safe_load(section) == {"prepare": {"x": {"path": str(tmp_path / name), **SECTION}}}
    assert code == 0
    assert f"{kind}, " in shown
    assert "60 of 60 conversations" in shown
    assert "names of speakers: customer 60, agent 60" in shown
    assert "<|im_start|>user\nWhere is order 0?<|im_end|>" in shown


@pytest.mark.parametrize(("separator", "words"), [(",", "commas"), (";", "semicolons"), ("|", "bars")])
def test_the_separator_of_a_table_is_found(separator, words, tmp_path, capsys):
    file = tmp_path / "faq.csv"
    rows = [("Frage", "Antwort"), *((f"Wo ist {i}?", f"Hier ist {i}.") for i in range(20))]
    file.write_text("".join(f"{separator.join(row)}\n" for row in rows))
    code, section, shown = look(capsys, file)
    assert f"CSV, separated by {words}" in shown
    assert yaml.safe_load(section)["prepare"]["faq"]["columns"] == {"prompt": "Frage", "response": "Antwort"}
    assert code == 0


def test_of_a_folder_the_files_of_one_shape_are_taken(tmp_path, capsys):
    for name, content in {
        "a/1.jsonl": lines(),
        "b/2.jsonl": lines(),
        "b/3.jsonl": b'{"q": "Hi", "a": "Hello"}\n',
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "README.md").write_text("# Chats\n")
    _, section, shown = look(capsys, tmp_path)
    (found,) = yaml.safe_load(section)["prepare"].values()
    assert found == {"path": str(tmp_path), "files": ["a/1.jsonl", "b/2.jsonl"], **SECTION}
    assert "need sections of their own: 3.jsonl" in shown


@pytest.mark.parametrize(
    "name", [pytest.param("mill", marks=pytest.mark.slow), "skills.yaml", "letters.txt", "visits.jsonl"]
)
def test_the_default_sources_are_recognised(name, capsys):
    code, section, _ = look(capsys, ROOT / "data/raw" / name)
    (found,) = yaml.safe_load(section)["prepare"].values()
    sources = read_params(ROOT / "params.yaml")["prepare"].values()
    assert found["format"] == next(source["format"] for source in sources if source["path"].endswith(f"/{name}"))
    assert code == 0


def test_the_section_is_what_prepare_reads(tmp_path, capsys):
    (tmp_path / "x.jsonl").write_bytes(lines())
    _, section, _ = look(capsys, tmp_path / "x.jsonl")
    assert len(list(read_dataset(**yaml.safe_load(section)["prepare"]["x"]))) == 60


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("x.jsonl", b"", "x.jsonl: empty: expected conversations or texts"),
        ("x.csv", b"a\0b", "x.csv: binary data that no reader knows: save it as JSON lines, CSV, Parquet or text"),
        ("x.xlsx", b"PK\x03\x04abc", "a ZIP archive, or a document of an office program"),
        ("x.bin", b"some words\nand more\n", "its name does not say what else"),
        ("x.jsonl", b'{"n": 1}\n{"n": 2}\n', "no section can be proposed: no column holds a conversation"),
        ("x", b'{"data": [{"q": "Hi you", "a": "Hello"}]}', "they are read where the name of the file ends in .json"),
        ("x.txt", b"Ana: Hi\nBen: Hello\n\nAna: Bye\nBen: Bye\n", "its speakers are named Ana, Ben"),
        ("x.txt", b"1 2 3\n4 5 6\n", "its lines hold numbers"),
        ("x.txt", b"caf\xe9\n", "x.txt:1: not UTF-8 at byte 3 of the file: convert it, as by iconv -t utf-8"),
    ],
)
def test_what_no_format_reads_is_an_error_with_the_reason(name, content, reason, tmp_path, capsys):
    (tmp_path / name).write_bytes(content)
    code, section, shown = look(capsys, tmp_path / name)
    assert (code, section) == (1, "")
    assert reason in shown


@pytest.mark.parametrize(
    ("text", "format"),
    [
        ("Human: Hi\nAssistant: Hello\n\nHuman: Bye\nAssistant: Bye\n", "markers"),
        ("# Chat\n\n**User:** Hi\n\n**Assistant:** Hello\n\n**User:** Bye\n\n**Assistant:** Bye\n", "markers"),
        ("Is it open?\nNo, it is not.\n\nWhen is it?\nAt nine.\n", "text"),
        ("A long text that is\nwrapped at a width, and\nso on.\n\nAnother part of\nit.\n", "documents"),
    ],
)
def test_text_files_are_told_apart(text, format, tmp_path, capsys):
    (tmp_path / "x.txt").write_text(text)
    code, section, _ = look(capsys, tmp_path / "x.txt")
    assert yaml.safe_load(section)["prepare"]["x"]["format"] == format
    assert code == 0


@pytest.mark.parametrize(
    ("name", "fate"), [("x.jsonl", "60, cut, only the end remains"), ("x.txt", "1, trained on in parts")]
)
def test_what_is_longer_than_the_context_is_counted(name, fate, tmp_path, capsys, monkeypatch):
    (tmp_path / name).write_bytes(lines() if name == "x.jsonl" else b"The mill is old and turns.\n" * 3)
    (tmp_path / "params.yaml").write_text("train_model: {context: 8}\n")
    write_folder(byte_tokenizer().vocabulary, tmp_path / "data/tokenizer")
    monkeypatch.chdir(tmp_path)
    assert f"longer than the context: {fate}\n" in look(capsys, name)[2]


def test_a_column_without_a_name_is_called_by_its_number(tmp_path, capsys):
    (tmp_path / "x.csv").write_text("question,\n" + "".join(f"Where is {i}?,It is at {i} now.\n" for i in range(20)))
    _, section, _ = look(capsys, tmp_path / "x.csv")
    assert yaml.safe_load(section)["prepare"]["x"]["columns"] == {"prompt": "question", "response": "column 2"}


def test_looking_imports_neither_torch_nor_transformers(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(lines())
    code = (
        "import sys; from chatmill.app.cli import main; main(['prepare', '--look', 'x.jsonl']); "
        "print([name for name in ('torch', 'transformers', 'onnxruntime', 'dvc') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True, text=True)
    assert done.stdout.endswith("\n[]\n")
