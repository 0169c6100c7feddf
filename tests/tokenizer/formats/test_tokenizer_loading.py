"""Exported external tokenizers give the same ids as in the program that each was made for."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from tokenizers.normalizers import Lowercase, Replace

from chatmill.app.cli import main
from chatmill.conversation import CONTROL_TOKENS, LossKind, Segment
from chatmill.tokenizer.encoding.backends import choose_backend
from chatmill.tokenizer.exporting import parity
from chatmill.tokenizer.exporting.exports import export_all
from chatmill.tokenizer.exporting.parity import load_encoders
from chatmill.tokenizer.formats.tokenizer_loading import files_of, load, read_vocabulary, tokenizer_file
from chatmill.tokenizer.vocabulary.vocabulary import Kind
from support import external_tokenizers
from support.original_tokenizers import open_original
from support.paths import SHARED
from support.texts import REAL, SAMPLE, SAMPLE_TEXT, TEXTS, real_lines

TOKENIZERS = SHARED / "tokenizers"
BYTES_FORMATS = {"tokenizer.bin", "tokenizer.pkl", "tokenizer.tiktoken", "tokenizer.json"}
WITH_RANKS = [f"tiktoken/{name}_base.tiktoken" for name in ("r50k", "p50k", "cl100k", "o200k")]
WITH_RANKS += ["gpt2", "qwen/qwen.tiktoken", "qwen/qwen.crlf.tiktoken", "torchtune/tokenizer.json"]
ROUNDED = ["torchtune/sentencepiece.model", "torchtune/m.model", "sentencepiece_tests/test_ja_model.model"]
EXPORTS = {  # the files in which each must be written and give the same ids
    **dict.fromkeys(WITH_RANKS, BYTES_FORMATS),
    **{name: {"tokenizer.bin", "tokenizer.model"} for name in ROUNDED},
    **{name: {"tokenizer.bin", "tokenizer.json"} for name in ("hf_t5-small", "bert/bert-vocab.txt")},
    "llama2/tokenizer.model": {"tokenizer.bin", "tokenizer.json", "tokenizer.model"},
}


def export(name, folder, *options):
    assert main(["export-tokenizer", str(TOKENIZERS / name), str(folder), *options]) == 0
    return json.loads((folder / "formats.json").read_text())


@pytest.mark.slow
@pytest.mark.skipif(
    not (TOKENIZERS.exists() and REAL.exists()), reason="the published tokenizers and texts are not here"
)
@pytest.mark.parametrize("name", EXPORTS)
def test_every_export_gives_the_ids_of_the_original(name, tmp_path, record_property):
    formats = export(name, tmp_path / "out")
    encoders = load_encoders(tmp_path / "out")
    vocabulary = read_vocabulary(TOKENIZERS / name)
    lines = real_lines(sample=SAMPLE)
    if vocabulary.algorithm == "viterbi":  # in `tokenizers` Unigram takes names in text for the special tokens
        special = vocabulary.named(Kind.CONTROL, Kind.UNKNOWN)
        lines = [line for line in lines if not any(name in line for name in special)]
    expected = open_original(tokenizer_file(TOKENIZERS / name), tmp_path).encode_plain(lines)
    assert EXPORTS[name] <= set(encoders)
    for file, encode in encoders.items():
        differing = sum(ids != own for ids, own in zip(encode(lines), expected, strict=True))
        print(f"{name} {file}: equal on {len(lines) - differing:,} of {len(lines):,} texts")
        if file in EXPORTS[name]:
            assert differing == 0, file
            record_property("cases", len(lines))
        else:
            assert name in ROUNDED
            assert not formats["huggingface"]["exact"]
            assert differing < len(lines) / 200


MAKERS = {
    "gpt2": (external_tokenizers.gpt2_like, BYTES_FORMATS),
    "gaps": (external_tokenizers.gaps_like, {"tokenizer.bin", "tokenizer.json"}),
    "ranks": (external_tokenizers.ranks_like, BYTES_FORMATS),
    "llama": (external_tokenizers.llama_like, {"tokenizer.bin", "tokenizer.json", "tokenizer.model"}),
    "t5": (external_tokenizers.t5_like, {"tokenizer.bin", "tokenizer.model"}),
    "unigram": (external_tokenizers.unigram_like, {"tokenizer.bin", "tokenizer.json"}),
    "bpe": (external_tokenizers.bpe_like, {"tokenizer.bin", "tokenizer.model"}),
    "words": (external_tokenizers.words_like, {"tokenizer.bin", "tokenizer.json"}),
    "bert": (external_tokenizers.bert_like, {"tokenizer.bin", "tokenizer.json"}),
    "nfc": (external_tokenizers.nfc_like, {"tokenizer.bin", "tokenizer.json"}),
}


@pytest.fixture(scope="module", params=MAKERS)
def external(request, tmp_path_factory):
    """A small tokenizer made by another library, and what it is exported to."""
    folder = tmp_path_factory.mktemp(request.param)
    make, files = MAKERS[request.param]
    path = make(folder)
    assert main(["export-tokenizer", str(path), str(folder / "out")]) == 0
    vocabulary, formats = read_vocabulary(path), json.loads((folder / "out/formats.json").read_text())
    runtimes, encode = load_encoders(folder / "out"), parity.open_original(path, vocabulary).encode
    return SimpleNamespace(
        path=path, files=files, vocabulary=vocabulary, formats=formats, encode=encode, runtimes=runtimes
    )


@settings(max_examples=100)
@given(text=TEXTS)
def test_small_external_tokenizers_keep_their_ids(external, text):
    (expected,) = external.encode([text])
    if set(expected).isdisjoint(external.vocabulary.special.values()):  # which Unigram finds even so
        for file in external.files:
            assert external.runtimes[file]([text]) == [expected], file


def test_chat_tokens_take_unused_ids_and_then_others_and_no_other_id_changes(external, tmp_path):
    before = external.vocabulary
    assert main(["export-tokenizer", str(external.path), str(tmp_path / "out"), "--add-chat-tokens"]) == 0
    after = read_vocabulary(tmp_path / "out" / "tokenizer.bin")
    assert set(CONTROL_TOKENS) <= set(after.special)
    changed = {i for i, token in enumerate(before.tokens) if after.tokens[i] != token}
    unused = [i for i, kind in enumerate(before.kinds) if kind == Kind.UNUSED]
    assert changed == set(unused[: len(CONTROL_TOKENS)])
    assert [after.tokens[i].decode() for i in sorted(changed)] == [*CONTROL_TOKENS][: len(changed)]
    assert "<|im_start|>" in (tmp_path / "out/chat_template.jinja").read_text()
    text = "the cat sat 12 ☃☃"
    assert choose_backend(after).encode_one(text) == choose_backend(before).encode_one(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.json", "out"], "nothing.json: no such file"),
        (["encoder.json", "."], ".: already exists: name a new folder"),
        (["vocab.bpe", "out", "--check", "none.txt"], "none.txt: no such file or directory"),
        (["vocab.txt", "out"], "vocab.txt:2: not a vocabulary entry, or a duplicate: 'the'"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(external_tokenizers.gpt2_like(tmp_path))
    (tmp_path / "vocab.txt").write_text("the\nthe\n")
    before = sorted(tmp_path.iterdir())
    assert main(["export-tokenizer", *arguments]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(f"chatmill: {message}")
    assert shown.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_ids_are_compared_with_those_of_what_transformers_loads(tmp_path, capsys):
    """Its Qwen2Tokenizer normalises to NFC, whatever tokenizer.json says."""
    pytest.importorskip("transformers")
    file = external_tokenizers.nfc_like(tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"normalizer": None}))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    (tmp_path / "text.txt").write_text("e\u0301", encoding="utf-8")
    assert main(["export-tokenizer", str(tmp_path), str(tmp_path / "out"), "--check", str(tmp_path / "text.txt")]) == 0
    shown = capsys.readouterr().out
    assert "compared with transformers (Qwen2Tokenizer):" in shown and "different on 1, such as 'e\u0301'" in shown


UNKNOWN = "not a tokenizer, but a file that begins with "
MERGES = "not a tokenizer, but merges without their vocabulary beside them, such as vocab.json: expected a folder, "


def test_all_files_of_a_tokenizer_are_named(tmp_path):
    external_tokenizers.ranks_like(external_tokenizers.gpt2_like(tmp_path))
    for files in (["encoder.json", "vocab.bpe"], ["vocab.bpe", "encoder.json"], ["t.tiktoken", "t.tiktoken.json"]):
        assert [file.name for file in files_of(tmp_path / files[0])] == files
    assert files_of(tmp_path / "t.tiktoken.json") == [tmp_path / "t.tiktoken.json"]


BPE = b'{"model": {"type": "BPE", %s}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}}'
UNIGRAM = b'{"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], %s]}, "added_tokens": [%s]}'
CONTENTS = [
    (b"", ": not a tokenizer, but an empty file: expected a folder, a tokenizer.json, a vocabulary with merges"),
    (b"\xef\xbb\xbf \thello, you there and all.", f": {UNKNOWN}b'hello, you there and all': expected a folder"),
    (b"}\0", f": {UNKNOWN}b'}}\\x00'"),
    (b"{\0", f": {UNKNOWN}b'{{\\x00'"),
    (b"version https://git-lfs.github.com/\n", ": not a tokenizer, but a pointer of Git LFS, whose content `git"),
    (b"#version: 0.2\nt h\n", f": {MERGES}"),
    (b"t h\r\nth e\r\n", f": {MERGES}"),
    (b"{", ": not JSON, although it begins like it: Expecting property name"),
    (b'{"a":' * 100_000, ": not a tokenizer that chatmill can read: RecursionError("),
    (b'\xef\xbb\xbf \n{"a": 0}', ": a vocabulary without its merges: put them beside it, such as merges.txt"),
    (b'{"vocab": [0], "a": 1}', ": a JSON object without a model"),
    (b'{"vocab": {}, "config": {}}', ": a JSON object without a model"),
    (b'{"a": true}', ": a JSON object without a model: it is not a tokenizer.json"),
    (b"{}", ": a JSON object without a model"),
    (b'{"model": [7]}', ": not a tokenizer that chatmill can read: AttributeError("),
    (b'{"model": {"type": "BPE", "vocab": {"a": 0}}}', ": its pre_tokenizer does not end with ByteLevel, but with"),
    (BPE % b'"vocab": {"a": 1}, "merges": []', ": no token has the id 0"),
    (BPE % b'"vocab": {}, "merges": []', ": its model has no vocabulary"),
    (BPE % b'"vocab": {"a": 0}, "merges": 7', ": not a tokenizer that chatmill can read: TypeError("),
    (UNIGRAM % (b'["a", 0]', b'{"id": 2, "content": "x"}'), ": the name of its token 2, b'x', is a single character, "),
    (UNIGRAM % (b'["a\\u0000", 0]', b""), ": a token contains the character U+0000, which SentencePiece does not"),
    (UNIGRAM % (b'["a b", 0]', b""), ": a piece contains a space, which is written as U+2581"),
    (UNIGRAM % (b'["\\u2581a", 0]', b""), ": its preprocessing does not write spaces as U+2581"),
    (b"\n" + b"a" * 65_534 + b"\0", ": not a SentencePiece model: "),
    (b"\n" + b"a" * 65_535 + b"\0", f": {UNKNOWN}b'{'a' * 24}'"),
    (b" ab\0", f": {UNKNOWN}b'ab\\x00'"),
    (b"\x08ab\0", f": {UNKNOWN}b'\\x08ab\\x00'"),
    (b"ab" * 99 + b"chatmill" + b"a" * 248, ": not a complete tokenizer.bin: no footer: it is truncated"),
    (b"ab" * 99 + b"chatmill" + b"a" * 249, f": {UNKNOWN}b'{'ab' * 12}'"),
    (b"[CLS]\r\n[UNK]\r\n", ": no entry [PAD]: not a BERT vocabulary"),
    (b"a [UNK]\nb", f": {UNKNOWN}b'a [UNK]\\nb'"),
    (b"\x80\x02junk", ": not a pickled tiktoken.Encoding: "),
    (b"\x80\x06junk", f": {UNKNOWN}b'\\x80\\x06junk'"),
    (b"AQ==\nAQ== 0\n", f": {UNKNOWN}b'AQ==\\nAQ== 0\\n'"),
]


@pytest.mark.parametrize(("content", "message"), CONTENTS, ids=range(len(CONTENTS)))
def test_what_is_no_tokenizer_is_refused_by_what_it_seems_to_be(content, message, tmp_path):
    (tmp_path / "t").write_bytes(content)
    for read in (load, read_vocabulary):
        with pytest.raises(ValueError) as error:
            read(tmp_path / "t")
        assert str(error.value).startswith(f"{tmp_path / 't'}{message}") and str(error.value).count("/t:") == 1


def build_lossy(folder, *tokens, **settings):
    content = external_tokenizers.byte_level(**settings) | {"added_tokens": [*tokens]}
    return external_tokenizers.built(folder, content).path


WITHOUT_BYTES = external_tokenizers.VERBATIM | {"byte_fallback": False, "character_coverage": 0.98}
MASK = external_tokenizers.added(400, "mask", lstrip=True, special=False)
LOSSY = {
    r"t\.model: it changes text, '.*' into '.*': its tokens are not the bytes of the text": external_tokenizers.t5_like,
    r"t\.model: it changes text, 'Café' into '<unk>afé': its": lambda folder: external_tokenizers.train_model(
        folder, model_type="bpe", **WITHOUT_BYTES
    ),
    "json: it changes text, 'Café' into 'café'": lambda folder: build_lossy(folder, normalizer=Lowercase()),
    "json: it changes or loses some text": lambda folder: build_lossy(folder, normalizer=Replace("\u24e9", "z")),
    "json: it changes or loses some text: its tokens": lambda folder: build_lossy(folder, MASK),
}


@pytest.mark.parametrize("reason", LOSSY)
def test_a_tokenizer_that_loses_text_is_refused_with_the_reason(reason, tmp_path):
    with pytest.raises(ValueError, match=reason):
        load(LOSSY[reason](tmp_path))


def test_bytes_without_a_token_are_left_out_and_told(tmp_path):
    tokenizer = load(external_tokenizers.gaps_like(tmp_path))
    assert "~" not in SAMPLE_TEXT and b"~" in tokenizer.vocabulary.missing_bytes
    assert tokenizer.encode("a~~b") == tokenizer.encode("a") + tokenizer.encode("b")
    assert (tokenizer.said("a~b"), tokenizer.lost("~a~b"), tokenizer.lost("ab")) == (b"ab", "~", "")
    entries = export_all(["binary"], tmp_path, tokenizer.vocabulary, tmp_path / "out")
    assert bytes.fromhex(entries["binary"]["lost_bytes"]) == tokenizer.vocabulary.missing_bytes
    texts = ["~", "the cat", "~the ~cat"]
    segments = [[Segment(text, LossKind.TRAINED), Segment("a", LossKind.PROMPT)] for text in texts]
    encoded = tokenizer.encode_conversations(segments)
    found = [tokenizer.decode(ids) for ids in np.split(encoded.ids, encoded.offsets[1:-1])]
    assert found == ["a", "the cata", "the cata"]
