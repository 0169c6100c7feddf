import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import export_tokenizer
from chatmill.tokenizer.vocabulary.patterns import WORDS
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens, write_folder
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary, byte_level_vocabulary, rank_scores

SCRIPT = Path(export_tokenizer.__file__)
EVERY = ["binary", "llama2c", "tiktoken_pickle", "tiktoken", "huggingface", "sentencepiece"]


def sentencepiece_vocabulary():
    tokens = (*(bytes([byte]) for byte in range(256)), *(bytes([byte]) for byte in range(32, 127)))
    kinds = (Kind.FALLBACK,) * 256 + (Kind.NORMAL,) * 95
    return Vocabulary("sentencepiece", "merge", None, tokens, kinds, rank_scores(tokens, kinds))


VOCABULARIES = {
    "bpe": byte_level_vocabulary([b"th", b"the"], "bpe", "merge", r"\S+|\s+"),
    "whitespace": byte_level_vocabulary([b" the"], "whitespace", "lookup", WORDS),
    "sentencepiece": sentencepiece_vocabulary(),
}


@pytest.fixture(params=VOCABULARIES)
def tokenizer(request, tmp_path):
    write_folder(add_special_tokens(VOCABULARIES[request.param], []), tmp_path / request.param)
    return tmp_path / request.param


@pytest.fixture
def bpe(tmp_path):
    write_folder(add_special_tokens(VOCABULARIES["bpe"], []), tmp_path / "bpe")
    return tmp_path / "bpe"


def formats_of(tokenizer, formats=EVERY):
    out = tokenizer.with_name("out")
    export_tokenizer.main(tokenizer, out, formats=formats)
    return json.loads((out / "formats.json").read_text())


def test_formats_json_names_every_file_or_says_why_there_is_none(tokenizer):
    formats = formats_of(tokenizer)
    assert list(formats) == EVERY
    assert all("files" in entry or entry["reason"] for entry in formats.values())
    named = {name for entry in formats.values() for name in entry.get("files", [])}
    out = tokenizer.with_name("out")
    files = {file.relative_to(out).as_posix() for file in out.rglob("*") if file.is_file()}
    assert files == named | {"formats.json", "manifest.json"}


@pytest.mark.parametrize(
    ("type", "format", "exact", "reason"),
    [
        ("whitespace", "llama2c", False, "looks up complete pieces"),
        ("sentencepiece", "tiktoken", None, "needs a split pattern"),
        ("sentencepiece", "huggingface", False, "U+2581"),
        ("sentencepiece", "sentencepiece", False, "U+2581"),
    ],
)
def test_what_differs_has_a_reason(type, format, exact, reason, tmp_path):
    write_folder(add_special_tokens(VOCABULARIES[type], []), tmp_path / type)
    entry = formats_of(tmp_path / type)[format]
    assert entry.get("exact") is exact
    assert reason in entry["reason"]


@pytest.mark.parametrize("damage", [b"", b"{", None])
def test_a_damaged_tokenizer_is_refused_and_nothing_is_written(bpe, damage):
    file = bpe / "tokenizer.json"
    file.unlink() if damage is None else file.write_bytes(damage)
    with pytest.raises(ValueError, match=r"bpe/tokenizer\.json is (missing|damaged)"):
        export_tokenizer.main(bpe, bpe.with_name("out"), formats=EVERY)
    assert not bpe.with_name("out").exists()


@pytest.mark.slow
def test_the_script_says_what_is_wrong_in_one_line(tmp_path):
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"export_tokenizer": {"formats": ["gguf"]}}))
    command = [sys.executable, SCRIPT, "tokenizer", "out"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)
    assert result.stderr.startswith("export_tokenizer: params.yaml: export_tokenizer.formats.0: expected binary, ")
    assert not (tmp_path / "out").exists()
