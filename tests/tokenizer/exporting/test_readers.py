import pytest
import sentencepiece
import tokenizers

from chatmill.tokenizer.exporting.exports import add_readers
from chatmill.tokenizer.vocabulary.patterns import PATTERNS
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens
from chatmill.tokenizer.vocabulary.vocabulary import Kind, Vocabulary, byte_level_vocabulary, rank_scores

JSON_READERS = {"tokenizers", "transformers", "transformers.js", "ONNX Runtime GenAI"}


def readers(vocabulary, format="tiktoken"):
    """The reasons of each reader of a format, with their examples."""
    entry = {"files": []}
    add_readers({format: entry}, vocabulary)
    return {
        reader: {each["reason"].split(":")[0]: each.get("example") for each in differences}
        for reader, differences in entry.get("readers", {}).items()
    }


def byte_pairs(tokens, pattern="qwen2"):
    return add_special_tokens(byte_level_vocabulary(tokens, "bpe", "merge", PATTERNS[pattern]), [])


def test_every_example_for_tokenizers_and_sentencepiece_is_one(exported):
    own = exported.original
    for format, reader in ("huggingface", "tokenizers"), ("sentencepiece", "sentencepiece"):
        differences = exported.formats[format].get("readers", {}).get(reader, [])
        for text in (each["example"] for each in differences):
            if reader == "tokenizers":
                ids = tokenizers.Tokenizer.from_file(str(exported.out / "tokenizer.json")).encode(text).ids
            else:
                model = str(exported.out / "tokenizer.model")
                ids = sentencepiece.SentencePieceProcessor(model_file=model).encode(text)
            assert ids != own.encode(text), text


def test_all_that_read_a_tokenizer_json_take_names_of_control_tokens_for_the_tokens(exported):
    found = exported.formats["huggingface"]["readers"]
    assert set(found) == JSON_READERS
    assert all(each[0].get("example") == "<|bos|>" or "load" in each[0]["reason"] for each in found.values())
    assert found["transformers"][0]["example"] == "<|bos|>"


@pytest.mark.parametrize("pattern", PATTERNS)
def test_js_tiktoken_loads_only_gpt2s_pattern_everywhere(pattern):
    found = readers(byte_pairs([b"th", b"the"], pattern)).get("js-tiktoken", {})
    assert any("(?i" in reason for reason in found) == (pattern != "gpt2")


def test_a_space_that_is_none_elsewhere_is_an_example_only_where_ids_differ():
    reason = "for its pattern, U+FEFF is a space, and U+0085 is none"
    assert reason not in readers(byte_pairs([b"ab"], "gpt2")).get("js-tiktoken", {})
    example = readers(byte_pairs(["\x85".encode(), "\x85 ".encode()], "gpt2"))["js-tiktoken"][reason]
    assert example == "\x85 "


def test_readers_in_c_differ_where_a_merge_crosses_the_pieces():
    unsplit = "it merges by score without splitting the text first"
    assert readers(byte_pairs([b"12"]), "binary")["qwen3.c"][unsplit] == "12345678"
    assert unsplit not in readers(byte_pairs([b"ab"]), "binary")["qwen3.c"]


def test_llama2_c_is_named_unless_the_bytes_have_llama_2s_ids():
    assert "llama2.c" in readers(byte_pairs([b"th"]), "llama2c")
    kinds = (Kind.UNKNOWN, Kind.CONTROL, Kind.CONTROL, *[Kind.FALLBACK] * 256)
    tokens = (b"<unk>", b"<s>", b"</s>", *(bytes([byte]) for byte in range(256)))
    llama = Vocabulary("sentencepiece", "merge", None, tokens, kinds, rank_scores(tokens, kinds))
    assert readers(llama, "llama2c") == {}
