import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmill.conversation import CONTROL_TOKENS, Message
from chatmill.inference.chat_template import open_template
from chatmill.inference.model_metadata import read_model_metadata
from chatmill.inference.template_layout import known_layouts

CONTROLS = {
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "llama3": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "gemma": ("<bos>", "<start_of_turn>", "<end_of_turn>"),
    "phi3": ("<s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
    "zephyr": ("<s>", "</s>"),
    "llama2": ("<s>", "</s>"),
    "mistral": ("<s>", "</s>", "[INST]", "[/INST]"),
    "markers": ("<|endoftext|>",),
    "plain": ("<s>", "</s>"),
}
BEGIN = {"llama3": "<|begin_of_text|>", "gemma": "<bos>", "llama2": "<s>", "mistral": "<s>", "plain": "<s>"}
WRITTEN = {  # by hand, from each model's documentation: system S, question Q, answer A, question R
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
    "<|im_start|>user\nR<|im_end|>\n<|im_start|>assistant\n",
    "llama3": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nQ<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nR<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "gemma": "<bos><start_of_turn>user\nS\n\nQ<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
    "<start_of_turn>user\nR<end_of_turn>\n<start_of_turn>model\n",
    "phi3": "<|system|>\nS<|end|>\n<|user|>\nQ<|end|>\n<|assistant|>\nA<|end|>\n<|user|>\nR<|end|>\n<|assistant|>\n",
    "zephyr": "<|system|>\nS</s>\n<|user|>\nQ</s>\n<|assistant|>\nA</s>\n<|user|>\nR</s>\n<|assistant|>\n",
    "llama2": "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nQ [/INST] A</s><s>[INST] R [/INST]",
    "mistral": "<s>[INST] S\n\nQ [/INST] A</s>[INST] R [/INST]",
    "markers": "System: S\n\nHuman: Q\n\nAssistant: A\n\nHuman: R\n\nAssistant:",
    "plain": "<s>S\n\nQAR",
}
FIRST = [Message.from_text("system", "S"), Message.from_text("user", "Q")]
SECOND = [*FIRST, Message.from_text("assistant", "A"), Message.from_text("user", "R")]


def external(name, **options):
    special = {control: number for number, control in enumerate(CONTROLS[name])}
    return open_template("", special, name=name, bos=BEGIN.get(name, ""), **options)


def text(parts):
    return "".join(segment.text for segment in parts)


@pytest.mark.parametrize("name", known_layouts(""))
def test_a_conversation_is_written_as_the_models_know_it(name):
    assert text(external(name).prompt(SECOND)) == WRITTEN[name]


@pytest.mark.parametrize("name", known_layouts(""))
@given(message=st.lists(st.one_of(st.text(), st.sampled_from(["<s>", "<|eot_id|>", *CONTROL_TOKENS]))).map("".join))
def test_no_text_is_a_control_token(name, message):
    def controls(text):
        return [part.text for part in external(name).prompt([Message.from_text("user", text)]) if part.control]

    assert controls(message) == controls("Q")


def test_a_template_that_cannot_be_used_is_named():
    with pytest.raises(ValueError, match=r"unknown template 'alpaca': expected one of chatml, llama3"):
        open_template("", {}, name="alpaca")


def write(folder, **files):
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return read_model_metadata(folder)


def test_context_and_stop_ids_are_gathered_from_all_files(tmp_path):
    tokens = {"added_tokens": [{"id": 7, "content": "</s>"}, {"id": 1, "content": "<s>"}]}
    found = write(
        tmp_path,
        config={"max_position_embeddings": 512, "eos_token_id": 2, "chatmill": {"tools": ["calculator"]}},
        generation_config={"eos_token_id": [2, 5]},
        tokenizer_config={"eos_token": {"content": "</s>"}, "bos_token": "<s>", "add_bos_token": True},
        tokenizer=tokens,
    )
    assert found == (512, 1, {2, 5, 7}, "", ("calculator",), {"eos_token": "</s>", "bos_token": "<s>"})
    assert write(tmp_path, genai_config={"model": {"context_length": 64, "eos_token_id": 9}}).stop_ids == {2, 5, 7, 9}


@pytest.mark.parametrize(
    ("settings", "jinja", "bos"),
    [
        ({"bos_token": "<s>"}, "", None),
        ({"bos_token": "<s>", "tokenizer_class": "LlamaTokenizerFast"}, "", 1),
        ({"bos_token": "<s>", "tokenizer_class": "LlamaTokenizer", "add_bos_token": False}, "", None),
        ({"bos_token": "<s>"}, "{{ bos_token }}[INST]", 1),
        ({"bos_token": "<s>"}, "<s>[INST]", 1),
        ({"bos_token": "<s>", "tokenizer_class": "LlamaTokenizer"}, "<|user|>", None),
    ],
)
def test_the_first_token_is_put_where_the_models_files_put_it(settings, jinja, bos, tmp_path):
    (tmp_path / "chat_template.jinja").write_text(jinja)
    found = write(tmp_path, tokenizer_config=settings, tokenizer={"added_tokens": [{"id": 1, "content": "<s>"}]})
    assert (found.bos_id, found.chat_template) == (bos, jinja)
