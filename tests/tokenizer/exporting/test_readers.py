import pytest
import sentencepiece
import tokenizers

from chatmill.tokenizer.exporting.readers import SPACES, add_readers, with_spaces
from chatmill.tokenizer.vocabulary.patterns import CHARACTERS, PATTERNS, oniguruma_pretokens
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


def reasons(exported, format, reader):
    return " ".join(each["reason"] for each in exported.formats[format]["readers"][reader])


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


@pytest.mark.parametrize("exported", ["unigram"], indirect=True)
def test_unigram_in_transformers_js_has_no_byte_fallback(exported):
    assert "no byte fallback" in reasons(exported, "huggingface", "transformers.js")
    example = exported.formats["huggingface"]["readers"]["transformers.js"][-1]["example"]
    assert exported.original.encode(example) == list(example.encode())
    assert exported.formats["huggingface"]["readers"]["ONNX Runtime GenAI"] == [{"reason": "it does not load Unigram"}]


@pytest.mark.parametrize("exported", ["unigram", "sentencepiece-bpe"], indirect=True)
def test_u2581_is_named_for_every_reader_of_a_sentencepiece_model(exported):
    loading = JSON_READERS - ({"ONNX Runtime GenAI"} if exported.name == "unigram" else set())
    assert all("U+2581" in reasons(exported, "huggingface", reader) for reader in loading)
    assert "U+2581" in reasons(exported, "sentencepiece", "sentencepiece")


@pytest.mark.parametrize("exported", ["wordpiece"], indirect=True)
def test_wordpiece_is_not_loaded_by_genai_for_its_pattern(exported):
    assert "known to load only" in reasons(exported, "huggingface", "ONNX Runtime GenAI")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_js_tiktoken_loads_only_gpt2s_pattern_everywhere(pattern):
    found = readers(byte_pairs([b"th", b"the"], pattern)).get("js-tiktoken", {})
    assert any("(?i" in reason for reason in found) == (pattern != "gpt2")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_of_our_patterns_genai_refuses_nanochats(pattern):
    found = readers(byte_pairs([b"th", b"the"], pattern), "huggingface")["ONNX Runtime GenAI"]
    assert any("known to load only" in reason for reason in found) == (pattern == "nanochat")


def test_a_space_that_is_none_elsewhere_is_an_example_only_where_ids_differ():
    reason = "for its pattern, U+FEFF is a space, and U+0085 is none"
    assert reason not in readers(byte_pairs([b"ab"], "gpt2")).get("js-tiktoken", {})
    example = readers(byte_pairs(["\x85".encode(), "\x85 ".encode()], "gpt2"))["js-tiktoken"][reason]
    assert example == "\x85 "


def test_readers_in_c_differ_where_a_merge_crosses_the_pieces():
    unsplit = "it merges by score without splitting the text first"
    assert readers(byte_pairs([b"12"]), "binary")["qwen3.c"][unsplit] == "12345678"
    assert unsplit not in readers(byte_pairs([b"ab"]), "binary")["qwen3.c"]


def test_readers_in_c_differ_on_a_character_whose_first_bytes_are_no_token():
    vocabulary = byte_level_vocabulary(["中".encode()], "char", "lookup", CHARACTERS)
    found = readers(add_special_tokens(vocabulary, []), "binary")["qwen3.c"]
    assert found["it merges by score without splitting the text first"] == "中"


def test_llama2_c_is_named_unless_the_bytes_have_llama_2s_ids():
    assert "llama2.c" in readers(byte_pairs([b"th"]), "llama2c")
    kinds = (Kind.UNKNOWN, Kind.CONTROL, Kind.CONTROL, *[Kind.FALLBACK] * 256)
    tokens = (b"<unk>", b"<s>", b"</s>", *(bytes([byte]) for byte in range(256)))
    llama = Vocabulary("sentencepiece", "merge", None, tokens, kinds, rank_scores(tokens, kinds))
    assert readers(llama, "llama2c") == {}


def test_tiktoken_and_formats_without_files_have_no_entry():
    written = {"tiktoken_pickle": {"files": []}, "sentencepiece": {"reason": "no"}}
    add_readers(written, byte_pairs([b"th"]))
    assert written == {"tiktoken_pickle": {"files": []}, "sentencepiece": {"reason": "no"}}


@pytest.mark.parametrize("pattern", [*PATTERNS.values(), r"\\s+|[\s\S]", r"a|[^\S ]|[\s\S]"])
def test_the_spaces_of_unicode_are_those_of_our_patterns(pattern):
    assert oniguruma_pretokens(with_spaces(SPACES + r"\x{85}", pattern)) == oniguruma_pretokens(pattern)
