import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import train_tokenizer
from chatmill.conversation.chatml import Message, Part, escape
from chatmill.conversation.template import conversation_segments, header_segments
from chatmill.tokenizer.formats.tokenizer_loading import load
from chatmill.tokenizer.types import bpe, wordpiece
from chatmill.tokenizer.vocabulary.huggingface import chat_template, write_huggingface
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens, write_folder
from support.conversations import TEXT
from support.exported import write_chat
from support.paths import ANY_FOLDER
from support.texts import REAL, SAMPLE, real_lines
from support.texts import TEXTS as TEXTS_OF_ALL_KINDS

transformers = pytest.importorskip("transformers")

TEXTS = ["user\nWhat is the weather in the café?", "assistant\nIt is naïve to ask."]
TRAINERS = {"bpe": bpe, "wordpiece": wordpiece}
TEMPLATES = ["chatml", "markers"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Each type and template, loaded by transformers and by chatmill."""
    result = {}
    for name, trainer in TRAINERS.items():
        folder = tmp_path_factory.mktemp(name)
        vocabulary = trainer.train(TEXTS, trainer.MINIMUM + 20, trainer.Settings())
        write_folder(add_special_tokens(vocabulary, []), folder / "tokenizer")
        for template in TEMPLATES:
            write_huggingface(folder / "tokenizer", folder / template, template)
            other = transformers.AutoTokenizer.from_pretrained(folder / template)
            result[name, template] = other, load(folder / template)
    return result


@st.composite
def conversations(draw):
    """The same turns twice: as `messages` with calls and results for transformers, and as Messages."""
    messages, turns = [], []
    for role in draw(st.lists(st.sampled_from(["system", "user", "assistant", "tools"]), min_size=1, max_size=5)):
        text = draw(TEXT)
        if role != "tools":
            messages.append({"role": role, "content": text})
            turns.append(Message.from_text(role, text))
            continue
        expression, output, after = draw(TEXT), draw(TEXT), draw(TEXT)
        call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": expression}}}
        messages.append({"role": "assistant", "content": text, "tool_calls": [call]})
        messages.append({"role": "tool", "content": output})
        messages.append({"role": "assistant", "content": [{"type": "text", "text": after}]})
        parts = [Part("text", text), Part("call", expression), Part("output", output), Part("text", after)]
        turns.append(Message("assistant", tuple(part for part in parts if part.kind != "text" or part.text)))
        messages.append({"role": "user", "content": "so"})
        turns.append(Message.from_text("user", "so"))
    return messages, turns


@pytest.mark.parametrize("template", TEMPLATES)
@given(conversation=conversations())
@settings(max_examples=60)
def test_the_jinja_template_is_the_renderer(loaded, template, conversation):
    other, tokenizer = loaded["bpe", template]
    messages, turns = conversation
    expected = "".join(part.text for part in conversation_segments(turns, template))
    assert other.apply_chat_template(messages, tokenize=False) == expected
    prompt = other.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == expected + "".join(part.text for part in header_segments("assistant", template))
    ids = other.apply_chat_template(messages)["input_ids"]
    assert ids == tokenizer.encode_conversation(turns, template)[0]


@pytest.mark.parametrize("template", TEMPLATES)
def test_after_a_result_the_turn_stays_open(loaded, template):
    call = {"function": {"name": "search", "arguments": {"for": "é"}}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "2"}]
    prompt = loaded["bpe", template][0].apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    turn = '<|python_start|>{"name": "search", "arguments": {"for": "é"}}<|python_end|><|output_start|>2<|output_end|>'
    assert prompt.endswith(turn)


@pytest.mark.parametrize("name", TRAINERS)
@given(text=st.text())
@settings(max_examples=60)
def test_transformers_gives_the_same_ids_and_text(loaded, name, text):
    other, tokenizer = loaded[name, "chatml"]
    plain = text.replace("<", "")
    ids = tokenizer.encode(plain)
    assert other(plain)["input_ids"] == ids
    assert other.decode(ids) == plain


GENAI_CONFIG = {  # what ONNX Runtime GenAI needs beside a tokenizer
    "model": {
        "type": "llama",
        "vocab_size": 704,
        "context_length": 64,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "decoder": {"filename": "model.onnx", "session_options": {"provider_options": []}, "inputs": {}, "outputs": {}}
        | dict.fromkeys(("head_size", "hidden_size"), 8)
        | dict.fromkeys(("num_attention_heads", "num_hidden_layers", "num_key_value_heads"), 1),
    },
    "search": {},
}


@pytest.fixture(scope="module", params=["qwen2", "llama3", "gpt2"])
def genai(request, tmp_path_factory):
    """The tokenizer of each pattern, loaded by ONNX Runtime GenAI and by chatmill."""
    onnxruntime_genai = pytest.importorskip("onnxruntime_genai", reason="ONNX Runtime GenAI is not installed")
    folder = tmp_path_factory.mktemp(request.param)
    write_chat(folder / "chat.jsonl")
    chosen = {"type": "bpe", "vocab_size": 704, "special_tokens": [], "max_bytes": None}
    parameters = chosen | {"bpe": {"pattern": request.param}}
    train_tokenizer.main(folder / "chat.jsonl", ANY_FOLDER, folder / "tokenizer", parameters=parameters)
    write_huggingface(folder / "tokenizer", folder / "out", "chatml")
    (folder / "out" / "genai_config.json").write_text(json.dumps(GENAI_CONFIG))
    return onnxruntime_genai.Tokenizer(str(folder / "out")), load(folder / "out")


@given(text=TEXTS_OF_ALL_KINDS)
@settings(max_examples=150)
def test_onnxruntime_genai_gives_the_same_for_escaped_text(genai, text):
    """Texts have no character 0, where ONNX Runtime GenAI ends them."""
    other, tokenizer = genai
    text = escape(text).replace("\0", "")
    assert list(other.encode(text)) == tokenizer.encode(text)


@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason="the texts in many languages are not here")
def test_onnxruntime_genai_gives_the_same_for_real_texts(genai):
    other, tokenizer = genai
    lines = [escape(line).replace("\0", "") for line in real_lines(sample=SAMPLE)]
    found = [list(other.encode(line)) for line in lines]
    assert found == tokenizer.encode(lines)
    print(f"onnxruntime-genai: equal on {len(lines):,} texts")


def test_control_tokens_have_their_roles(loaded):
    other, tokenizer = loaded["bpe", "chatml"]
    ids = [other.bos_token_id, other.eos_token_id, other.pad_token_id]
    assert ids == [tokenizer.special[name] for name in ("<|bos|>", "<|im_end|>", "<|pad|>")]
    assert len(other) == tokenizer.vocab_size
    assert other.decode(ids, skip_special_tokens=True) == ""


def test_an_unknown_role_and_a_lone_result_are_refused(loaded):
    other, _ = loaded["bpe", "chatml"]
    for messages in ([{"role": "robot", "content": ""}], [{"role": "tool", "content": ""}]):
        with pytest.raises(Exception, match=r"unknown role robot|a tool result without its call"):
            other.apply_chat_template(messages, tokenize=False)


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_template_stands_in_both_places(loaded, template):
    folder = Path(loaded["bpe", template][0].name_or_path)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert (folder / "chat_template.jinja").read_text() == config["chat_template"] == chat_template(template)
    assert "generation %}" not in config["chat_template"]
