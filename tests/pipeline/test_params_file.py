"""params.yaml is read as DVC reads it, and checked completely before any stage starts."""

import json
import subprocess
import sys

import pytest
import yaml

from chatmill.pipeline.params_file import SCHEMA_FILE, check_external, find_errors, read_params
from support.paths import ROOT, SOURCE

SCHEMA = json.loads((SOURCE / SCHEMA_FILE).read_text())
SHARE = 'a number of at least 0, or a string such as "30%"'
NEAR = " (did you mean {}?): expected one of "


def test_numbers_are_read_as_dvc_reads_them(tmp_path):
    file = tmp_path / "params.yaml"
    file.write_text("a: 1e-3\nb: 1E5\nc: -2.5e+3\nd: e3\ne: 1\nf: .5e1\n")
    assert read_params(file) == {"a": 0.001, "b": 1e5, "c": -2500.0, "d": "e3", "e": 1, "f": 5.0}


def errors(**changes):
    """The errors in the project's own parameters with some values changed, at keys joined by two underscores."""
    params = read_params(ROOT / "params.yaml")
    for key, value in changes.items():
        *path, last = key.split("__")
        section = params
        for name in path:
            section = section[name]
        section[last] = value
    return list(find_errors(params, SCHEMA))


@pytest.mark.parametrize("name", ["-x", "A_1", "données", "客服", "it's", "a b", "$x", 1])
def test_names_of_sources_are_letters_and_digits_whichever_stage_reads_them(name):
    found = errors(prepare={name: {"path": "it's $(a) path", "format": "text"}})
    is_plain = name in ("-x", "A_1", "données", "客服")
    assert [error[:22] for error in found] == ([] if is_plain else ["prepare: unusable name"])


def test_the_parameters_of_the_project_are_right():
    assert errors() == []


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("evalute", {"max_tokens": 1}, "unknown section evalute (did you mean evaluate?): expected one of benchmark, "),
        ("evaluate__max_token", 5, f"unknown parameter evaluate.max_token{NEAR.format('max_tokens')}"),
        ("evaluate__max_tokens", 0, "evaluate.max_tokens: expected an integer above 0, got 0"),
        ("train_model__dept", 5, f"unknown parameter train_model.dept{NEAR.format('depth')}"),
        ("train_model__precision", "fp32", 'train_model.precision: expected auto, float32 or bfloat16, got "fp32"'),
        ("train_model__compile", 5, "train_model.compile: expected auto, or true or false, got 5"),
        *(
            (
                "train_model__source_weights",
                {"talk": weight},
                f"train_model.source_weights.talk: expected {SHARE}, got {it}",
            )
            for weight, it in ((-1, "-1"), ("3", '"3"'), ("-3%", '"-3%"'), (True, "true"), (None, "null"))
        ),
        ("train_tokenizer__type", "bp", "train_tokenizer.type: expected bpe, byte, char, pretrained, "),
        ("train_tokenizer__vocab_size", 0, "train_tokenizer.vocab_size: expected an integer above 0, got 0"),
        ("prepare__visits__limits", 5, f"unknown parameter prepare.visits.limits{NEAR.format('limit')}"),
        ("prepare__visits", [1], "prepare.visits: expected keys and values, got [1]"),
        ("prepare__visits__path", 5, "prepare.visits.path: expected a path, got 5"),
        ("prepare__visits", {"format": "text"}, "missing parameter prepare.visits.path: expected a path"),
        ("export_tokenizer__formats", ["bin"], "export_tokenizer.formats.0: expected binary, llama2c, "),
        ("evaluate__compare_tokenizers", {"a": "0"}, "evaluate.compare_tokenizers: expected a list, each "),
    ],
)
def test_every_section_is_checked(key, value, message):
    found = errors(**{key: value})
    assert [error[: len(message)] for error in found] == [message]


@pytest.mark.parametrize("rate", [0.0005, 3e-4, 1e-9, 0.1, 1])
def test_small_numbers_are_right(rate):
    assert errors(train_model__learning_rate=rate) == []


@pytest.mark.parametrize("rate", [0, float("inf"), float("nan")])
def test_a_number_without_a_size_is_wrong(rate):
    assert len(errors(train_model__learning_rate=rate)) == 1


def test_an_error_in_a_later_section_ends_the_first_stage_at_once(tmp_path):
    params = read_params(ROOT / "params.yaml")
    params["benchmark"]["repeets"] = params["benchmark"].pop("repeats")
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    command = [sys.executable, SOURCE / "prepare.py", "letters.jsonl", "letters.rejects.jsonl", "m.json"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert "benchmark.repeats: expected an integer above 0; params.yaml: unknown parameter benchmark.repeets" in (
        result.stderr
    )
    assert not (tmp_path / "letters.jsonl").exists()


def test_a_file_in_the_folder_that_dvc_tracks_is_accepted(tmp_path):
    check_external(tmp_path / "initial/earlier", tmp_path / "initial", "train_model.initial")


@pytest.mark.parametrize("name", ["earlier", "initial", "initial/../earlier"])
def test_any_other_is_refused_with_the_commands_that_bring_it_there(tmp_path, name):
    (tmp_path / "earlier").mkdir()
    with pytest.raises(ValueError, match=r"^train_model.initial: expected a path in .*`cp .*dvc import-url.*dvc add "):
        check_external(tmp_path / name, tmp_path / "initial", "train_model.initial")
