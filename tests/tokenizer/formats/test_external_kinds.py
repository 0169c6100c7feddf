"""Every kind of published tokenizer, in small: equal ids where formats.json says so, or refused with the reason."""

import json

import pytest
from tokenizers import Tokenizer

from chatmill.app.cli import main
from chatmill.tokenizer.exporting.parity import load_encoders, names_found, open_original
from chatmill.tokenizer.formats.tokenizer_loading import load, make_lossless, read_vocabulary
from chatmill.tokenizer.vocabulary.patterns import PATTERNS
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens, read_folder, write_folder
from chatmill.tokenizer.vocabulary.vocabulary import Kind
from support.external_ranks import BUILDERS
from support.external_tokenizers import VERBATIM, Built, train_model
from support.hard_texts import control_texts, make_texts

REFUSED = {
    "clip": "it marks the ends of words by '</w>'",
    "words": "text is lost: use a tokenizer with byte fallback",
    "tekken": "Mistral's tekken.json, which is not supported: use the model's tokenizer.json",
}
FORMAT_OF = {
    "tokenizer.bin": "binary",
    "tokenizer.pkl": "tiktoken_pickle",
    "tokenizer.tiktoken": "tiktoken",
    "tokenizer.json": "huggingface",
    "tokenizer.model": "sentencepiece",
}


@pytest.fixture(scope="module")
def texts():
    return [text for texts in make_texts(None).values() for text in texts[::40] if len(text) < 400]


@pytest.mark.parametrize("kind", sorted(BUILDERS.keys() - REFUSED.keys()))
def test_what_is_called_exact_gives_the_ids_of_the_original(kind, texts, tmp_path):
    path = BUILDERS[kind](tmp_path).path
    if kind in ("empty_token", "ranks_model"):
        about = {"name": "own", "pattern": PATTERNS["llama3"], "special_tokens": {"<|end|>": 900}}
        path.with_name(f"{path.name}.json").write_text(json.dumps(about))
    vocabulary = read_vocabulary(path)
    assert main(["export-tokenizer", str(path), str(tmp_path / "out")]) == 0
    formats = json.loads((tmp_path / "out/formats.json").read_text())
    original = open_original(path, vocabulary)
    names = [*vocabulary.special, *(token.content for token in vocabulary.added_tokens)]
    texts = texts + control_texts(names, 300)
    plain = dict(zip(texts, original.encode(texts), strict=True))
    special = vocabulary.named(Kind.CONTROL, Kind.UNKNOWN)
    plain = {text: ids for text, ids in plain.items() if not names_found(special, text, ids)}
    exact = {name for name, format in FORMAT_OF.items() if formats[format].get("exact")}
    assert ("tokenizer.bin" in exact) == (kind != "phi3")  # whose </s> is always found in text
    for name, encode in load_encoders(tmp_path / "out").items():
        assert name not in exact or list(plain.values()) == encode(list(plain)), name
    if original.encode_with_special is not None:
        expected = original.encode_with_special(texts)
        for name, encode in load_encoders(tmp_path / "out", special=True).items():
            assert name not in exact or expected == encode(texts), name


@pytest.mark.parametrize("kind", ["blanks", "roberta", "user_defined", "user_defined_unigram", "versioned_model"])
def test_the_folder_of_an_external_tokenizer_is_read_as_it_was_written(kind, tmp_path):
    pieces = {"user_defined_symbols": ["<sep>", "\u2581\u2581", "[REF]"], "model_type": "unigram"}
    chosen = VERBATIM | pieces | {"add_dummy_prefix": False}
    build = BUILDERS.get(kind, lambda folder: Built(train_model(folder, **chosen), None))
    vocabulary = add_special_tokens(make_lossless(read_vocabulary(build(tmp_path).path)), [])
    write_folder(vocabulary, tmp_path / "tokenizer")
    assert read_folder(tmp_path / "tokenizer").fingerprint == vocabulary.fingerprint
    (tmp_path / "tokenizer/manifest.json").rename(tmp_path / "tokenizer/chatmill_tokenizer.json")
    with pytest.raises(ValueError, match=r"chatmill_tokenizer\.json describes no tokenizer: make it anew"):
        read_folder(tmp_path / "tokenizer")


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_expressed_is_refused_with_the_reason(kind, tmp_path):
    with pytest.raises(ValueError, match=REFUSED[kind]):
        load(BUILDERS[kind](tmp_path).path)


def test_what_is_put_around_a_text_is_exported(tmp_path):
    path = BUILDERS["roberta"](tmp_path).path
    assert main(["export-tokenizer", str(path), str(tmp_path / "out"), "--formats", "huggingface"]) == 0
    exported, original = (Tokenizer.from_file(str(file)) for file in (tmp_path / "out/tokenizer.json", path))
    assert (
        exported.encode("the cat").ids
        == original.encode("the cat").ids
        != original.encode("the cat", add_special_tokens=False).ids
    )
