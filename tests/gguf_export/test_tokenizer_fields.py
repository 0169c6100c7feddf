from dataclasses import replace

import pytest
import tokenizers
from gguf import GGUFWriter

from chatmill.gguf_export.fields import UnsupportedModel, add_tokenizer, algorithm
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.tokenizer_loading import load
from chatmill.tokenizer.types import bpe, char, sentencepiece, whitespace
from chatmill.tokenizer.vocabulary.patterns import PATTERNS
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens
from support.external_tokenizers import build_phi3, built, byte_level
from support.gguf_reading import TOKENIZER, read
from support.texts import SAMPLE_TEXT

TEXTS = [SAMPLE_TEXT * 2]


def own(trained):
    return add_special_tokens(trained, [])


def fields(tokenizer, folder, vocab_size=None):
    """The fields of a tokenizer in a file."""
    writer = GGUFWriter(folder / "tokenizer.gguf", "llama")
    add_tokenizer(writer, tokenizer, vocab_size or tokenizer.vocab_size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    found = read(folder / "tokenizer.gguf").fields
    return {name.removeprefix(TOKENIZER): value for name, value in found.items() if name.startswith(TOKENIZER)}


@pytest.mark.parametrize(("pattern", "name"), [("qwen2", "qwen2"), ("llama3", "llama-bpe"), ("gpt2", "gpt-2")])
def test_a_pattern_has_the_name_that_llama_cpp_knows(pattern, name):
    assert algorithm(own(bpe.train(TEXTS, 400, bpe.Settings(pattern=pattern)))) == ("gpt2", name)


@pytest.mark.parametrize(
    ("trained", "reason"),
    [
        (bpe.train(TEXTS, 400, bpe.Settings(pattern="o200k")), "the type bpe with this pattern"),
        (whitespace.train(TEXTS, 400, whitespace.Settings()), "the type whitespace with this pattern"),
        (char.train(TEXTS, 300, char.Settings()), "the type char with this pattern"),
    ],
)
def test_a_pattern_that_llama_cpp_has_not_is_refused_with_a_text_that_all_of_its_patterns_split_otherwise(
    trained, reason
):
    with pytest.raises(UnsupportedModel, match=reason) as raised:
        algorithm(own(trained))
    assert str(raised.value).endswith("export_onnx and export_tokenizer write other formats")
    if trained.type == "char":  # its tokens are single characters, which no pattern cuts
        return
    for pattern in ("qwen2", "llama3", "gpt2"):
        other = ChatTokenizer(replace(own(trained), pattern=PATTERNS[pattern]))
        assert other.encode(raised.value.example) != ChatTokenizer(own(trained)).encode(raised.value.example)


def test_sentencepiece_has_scores_and_byte_tokens(tmp_path):
    vocabulary = own(sentencepiece.train([SAMPLE_TEXT] * 9, 500, sentencepiece.Settings(algorithm="bpe")))
    found = fields(ChatTokenizer(vocabulary), tmp_path)
    assert (found["model"], found["pre"], found["add_space_prefix"]) == ("llama", "default", False)
    assert "merges" not in found and tuple(found["scores"]) == vocabulary.scores
    newline = found["tokens"].index("<0x0A>")
    assert found["token_type"][newline] == 6 and vocabulary.tokens[newline] == b"\n"
    assert found["token_type"][found["unknown_token_id"]] == 5


def test_sentencepiece_of_which_some_pairs_are_not_merged_is_refused(tmp_path):
    with pytest.raises(UnsupportedModel, match="merges every pair that makes a token") as raised:
        algorithm(load(build_phi3(tmp_path).path).vocabulary)
    assert raised.value.example


def test_a_token_that_only_looking_up_gives_is_refused_but_for_llama3(tmp_path):
    """`ignore_merges` of a tokenizer.json: a piece that is a token is not merged."""
    contents = {}
    for name in ("gpt-2", "llama-bpe"):
        content = byte_level()
        content["model"]["ignore_merges"] = True
        content["model"]["vocab"]["zebra"] = len(content["model"]["vocab"])
        if name == "llama-bpe":
            regex = {"Regex": bpe.Settings(pattern="llama3").pattern}
            split = {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}
            level = content["pre_tokenizer"] | {"use_regex": False}
            content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, level]}
        contents[name] = content
    with pytest.raises(UnsupportedModel, match="merges pairs, which does not give some tokens, as in 'zebra'"):
        algorithm(load(built(tmp_path, contents["gpt-2"]).path).vocabulary)
    assert algorithm(load(built(tmp_path, contents["llama-bpe"]).path).vocabulary) == ("gpt2", "llama-bpe")
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("zebra").tokens == ["zebra"]
