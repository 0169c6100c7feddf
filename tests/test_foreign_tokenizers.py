"""Tokenizers made elsewhere, exported: the same ids as in the program that each was made for."""

import hashlib
import json
from pathlib import Path

import pytest
import sentencepiece
import tiktoken
import tokenizers

from chatmill.cli import main
from chatmill.tokenizer.loading import read_vocabulary
from chatmill.tokenizer.parity import runtimes, without_names
from test_parity import REAL, SAMPLE, real_lines

SHARED = Path(__file__).parents[2] / "shared/data/tokenizers"
BYTES_FORMATS = {"tokenizer.bin", "tokenizer.pkl", "tokenizer.tiktoken", "tokenizer.json"}
EXPORTS = {  # what each must be written as, and equal in
    "gpt2": BYTES_FORMATS,
    "tiktoken/r50k_base.tiktoken": BYTES_FORMATS,
    "tiktoken/p50k_base.tiktoken": BYTES_FORMATS,
    "tiktoken/cl100k_base.tiktoken": BYTES_FORMATS,
    "tiktoken/o200k_base.tiktoken": BYTES_FORMATS,
    "qwen/qwen.tiktoken": BYTES_FORMATS,
    "qwen/qwen.crlf.tiktoken": BYTES_FORMATS,
    "torchtune/tokenizer.json": BYTES_FORMATS,
    "llama2/tokenizer.model": {"tokenizer.bin", "tokenizer.json", "tokenizer.model"},
    "hf_t5-small": {"tokenizer.bin", "tokenizer.json"},
    "torchtune/sentencepiece.model": {"tokenizer.bin", "tokenizer.model"},
    "torchtune/m.model": {"tokenizer.bin", "tokenizer.model"},
    "sentencepiece_tests/test_ja_model.model": {"tokenizer.bin", "tokenizer.model"},
    "bert/bert-vocab.txt": {"tokenizer.bin", "tokenizer.json"},
}
ROUNDED = {"torchtune/sentencepiece.model", "torchtune/m.model", "sentencepiece_tests/test_ja_model.model"}
pytestmark = pytest.mark.skipif(not SHARED.exists(), reason="the published tokenizers are not here")


def published(name, file, monkeypatch, folder):
    """tiktoken's own encoding of that name, from our copy of what it would download: it checks the file's hash."""
    places = {"o200k_base": "encodings", "cl100k_base": "encodings", "p50k_base": "encodings", "r50k_base": "encodings"}
    address = f"https://openaipublic.blob.core.windows.net/{places[name]}/{name}.tiktoken"
    (folder / hashlib.sha1(address.encode()).hexdigest()).write_bytes(file.read_bytes())
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
    return tiktoken.get_encoding(name)


def original(name, monkeypatch, folder):
    """Texts to ids in the program that a tokenizer was made for."""
    path = SHARED / name
    if name == "gpt2":
        vocabulary, merges = str(path / "encoder.json"), str(path / "vocab.bpe")
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(vocabulary, merges))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif name.startswith("tiktoken/"):
        return published(path.stem, path, monkeypatch, folder).encode_ordinary_batch
    elif name.startswith("qwen/"):
        return qwen(path).encode_ordinary_batch
    elif path.suffix == ".model":
        return sentencepiece.SentencePieceProcessor(model_file=str(path)).encode
    elif name.startswith("bert/"):
        tokenizer = tokenizers.BertWordPieceTokenizer(str(path), lowercase=True)._tokenizer
    else:
        tokenizer = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json" if path.is_dir() else path))
    return lambda texts: [found.ids for found in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def qwen(path):
    """As Qwen's own tokenization_qwen.py makes it."""
    ranks = {}
    for line in path.read_text().splitlines():
        token, rank = line.split()
        ranks[tiktoken.load.base64.b64decode(token)] = int(rank)
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    return tiktoken.Encoding("qwen", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def export(name, folder, *options):
    assert main(["export-tokenizer", str(SHARED / name), str(folder), *options]) == 0
    return json.loads((folder / "formats.json").read_text())


@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason="the texts in many languages are not here")
@pytest.mark.parametrize("name", EXPORTS)
def test_every_export_gives_the_ids_of_the_original(name, tmp_path, monkeypatch):
    formats = export(name, tmp_path / "out")
    encoders = runtimes(tmp_path / "out")
    vocabulary = read_vocabulary(SHARED / name)
    lines = without_names(real_lines(sample=SAMPLE), vocabulary)
    expected = original(name, monkeypatch, tmp_path)(lines)
    assert EXPORTS[name] <= set(encoders)
    for file, encode in encoders.items():
        differing = sum(ids != own for ids, own in zip(encode(lines), expected, strict=True))
        print(f"{name} {file}: equal on {len(lines) - differing:,} of {len(lines):,} texts")
        if file in EXPORTS[name]:
            assert differing == 0, file
        else:
            assert name in ROUNDED
            assert not formats["huggingface"]["exact"]
            assert differing < len(lines) / 200
