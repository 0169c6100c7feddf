import json
from dataclasses import replace

import pytest

from chatmill.app.cli import main
from chatmill.conversation import Message, Record, render
from support.tiny import CONFIG, write_model

NUM_TALKS = 25


def talk(question, answer):
    return render([Message.from_text("user", question), Message.from_text("assistant", answer)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two models, and a split with talk and exercises."""
    folder = tmp_path_factory.mktemp("verdict")
    write_model(folder / "a")
    write_model(folder / "b", replace(CONFIG, num_hidden_layers=1))
    write_model(folder / "markers", template="markers")
    skill = {"name": "sums", "phrasing": "known", "answers": ["2"]}
    records = [Record("talk", f"talk/{i}", talk(f"Who is {i}?", f"It is me, {i}!")) for i in range(NUM_TALKS)]
    records += [Record("skills", f"skills/{i}", talk(f"1 + 1, {i}?", "2"), skill=skill) for i in range(3)]
    (folder / "test.jsonl").write_text("".join(record.to_json() for record in records), encoding="utf-8")
    return folder


def compare(folder, *arguments):
    return main(
        ["compare", "--threads", "1", "--device", "cpu", *(str(one).replace("@", f"{folder}/") for one in arguments)]
    )


def test_the_last_line_is_a_verdict(folder, capsys):
    assert compare(folder, "@a", "@b", "--data", "@test.jsonl") == 0
    lines = capsys.readouterr().out.split("\n\n")[-1]
    assert " bits than A (" in lines or "no clear difference" in lines
    assert "skills: no clear difference (0.0 % and 0.0 %)" in " ".join(lines.split())
    assert " ".join(lines.split()).endswith("as the default model does.")


def test_json_has_what_it_follows_from(folder, capsys):
    assert compare(folder, "@a", "@b", "--data", "@test.jsonl", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    first, second = (side["bits_per_byte"]["value"] for side in found["sides"])
    (difference,) = found["differences"]
    assert difference["bits"]["relative"] == pytest.approx(second / first - 1)
    assert difference["skills"]["items"] == 3
    assert found["text"] == "all"
    worst = found["documents"][0]
    assert "It is me" in worst["text"] and abs(worst["bits"]) == max(abs(one["bits"]) for one in found["documents"])


def test_a_page_has_the_same_verdict(folder, capsys):
    file = folder / "verdict.html"
    assert compare(folder, "@a", "@b", "@a", "--data", "@test.jsonl", "--html", file) == 0
    capsys.readouterr()
    page = file.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "<script" not in page
    assert page.count("With another seed alone A") == 2 and "right answers, of 3" in page


def test_models_of_other_templates_are_compared_by_answers(folder, capsys):
    assert compare(folder, "@a", "@markers", "--data", "@test.jsonl") == 0
    assert "bits per byte of the assistant's text" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["@a", "@b", "--html", "x.html"], "--html: expected --data FILE as well"),
        (["@a", "@b", "--data", "@test.jsonl", "-p", "Hi"], "expected either --data, or prompts"),
        (["@a", "@b", "--data", "@test.jsonl", "--limit", "0"], "--limit"),
        (["@a", "--data", "@test.jsonl"], "expected 2 to 26 models, got 1"),
        (["@a", "@a,,@b", "--data", "@test.jsonl"], "expected names of runs with commas between"),
        (["@none", "@a", "--data", "@test.jsonl"], "none: no such file or folder"),
        (["@a", "@b", "--data", "@none.jsonl"], "none.jsonl"),
        (["@a", "@b", "--data", "@test.jsonl", "--html", "@a"], "--html: expected a file in a folder that exists"),
        (["@a", "@b", "--data", "@test.jsonl", "--html", "@no/x.html"], "--html: expected a file in a folder"),
    ],
)
def test_what_cannot_be_compared_is_one_line_before_anything_is_measured(folder, capsys, arguments, message):
    assert compare(folder, *arguments) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
