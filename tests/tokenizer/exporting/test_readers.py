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


def test_all_that_read_a_tokenizer_json_take_names_of_control_tokens_for_the_tokens(exported):
    found = exported.formats["huggingface"]["readers"]
    assert set(found) == JSON_READERS
    assert all(each[0].get("example") == "<|bos|>" or "load" in each[0]["reason"] for each in found.values())
    assert found["transformers"][0]["example"] == "<|bos|>"


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
