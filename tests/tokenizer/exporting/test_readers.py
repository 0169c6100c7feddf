JSON_READERS = {"tokenizers", "transformers", "transformers.js", "ONNX Runtime GenAI"}


def test_all_that_read_a_tokenizer_json_take_names_of_control_tokens_for_the_tokens(exported):
    found = exported.formats["huggingface"]["readers"]
    assert set(found) == JSON_READERS
    assert all(each[0].get("example") == "<|bos|>" or "load" in each[0]["reason"] for each in found.values())
    assert found["transformers"][0]["example"] == "<|bos|>"
