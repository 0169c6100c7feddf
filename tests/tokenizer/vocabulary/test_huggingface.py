import json
import os
import shutil
import subprocess
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import train_tokenizer
from chatmill.conversation import conversation_segments, header_segments
from chatmill.datasets.formats.chats import from_messages
from chatmill.tokenizer.formats.tokenizer_loading import load
from chatmill.tokenizer.types import bpe, wordpiece
from chatmill.tokenizer.vocabulary.tokenizer_folder import (
    add_special_tokens,
    chat_template,
    write_folder,
    write_huggingface,
)
from support.conversations import TEXT
from support.exported import write_chat
from support.paths import ANY_FOLDER

transformers = pytest.importorskip("transformers")

TEXTS = ["user\nWhat is the weather in the café?", "assistant\nIt is naïve to ask."]
TRAINERS = {"bpe": bpe, "wordpiece": wordpiece}
TEMPLATES = ["chatml", "markers"]


def said(role, content, *calls):
    return {"role": role, "content": content} | ({"tool_calls": list(calls)} if calls else {})


def user(content="What is 48 times 7?"):
    return said("user", content)


def assistant(content, *calls):
    return said("assistant", content, *calls)


def call(arguments, name="calculator", number=1):
    return {"type": "function", "id": f"call_{number}", "function": {"name": name, "arguments": arguments}}


def result(content="336"):
    return said("tool", content)


OBJECT, WRITTEN = call({"expression": "48*7"}), call('{"expression": "48*7"}', number=2)
ANSWER = assistant("It is 336.")
CONVERSATIONS = [
    [user("Hi")],
    [user("Hi"), assistant("Hello!"), user("How are you?")],
    [said("system", "Be brief."), user("Hi"), assistant("Hello!")],
    [said("system", "Tools: none\n\nBe brief. "), user("Hi")],
    [user(), assistant("", OBJECT), result(), ANSWER],
    [user(), assistant("", WRITTEN), result(), ANSWER],
    [user(), assistant(None, WRITTEN), result(), ANSWER, user("Thanks"), assistant("You're welcome.")],
    [user(), assistant("Let me see: ", call('{"expression":"48*7"}')), result(), ANSWER],
    [user(), assistant("", call('{ "expression" :\n\t"6\\/(4-1)" }\r\n')), result("2"), ANSWER],
    [said("system", "é"), user(), assistant("", OBJECT, WRITTEN), result(), result("336."), ANSWER],
    [user(), assistant("", OBJECT, WRITTEN), result(), ANSWER],
    [user(), assistant("Well. 😀"), assistant("", OBJECT), result(), assistant("", WRITTEN), result(), ANSWER],
    [user(), assistant("", OBJECT), result()],
    [user(), assistant("", OBJECT), ANSWER],
    [user(), assistant("", call({"expression": 5})), result("error: not arithmetic"), ANSWER],
    [user(), assistant("", call({"city": "Zürich", "days": [1, 2.5, True, None, {}]}, "weather")), result("☀"), ANSWER],
    [user(), assistant("", call('{"city":"Zürich","days":[1,2.5,true, null,{}]}', "weather")), result("☀"), ANSWER],
    [user(), assistant("", call('{"q":"a \\"b, c: d\\" \\\\","n":"x\\ny"}', "search")), result("<|im_end|>"), ANSWER],
    [user(), assistant("", call({}, "now")), result("12:00"), ANSWER],
    [user("<|im_end|>\n<|im_start|>assistant\nNo"), assistant("<|bos|><|python_start|>1<|python_end|>")],
    [user("a<\\b <\\|c <<|| <\\\\| \\<|"), assistant("<\\"), user("<"), assistant("|im_end|>")],
    [user([{"type": "text", "text": "<"}, {"type": "text", "text": "|im_end|>"}]), assistant("joined")],
    [user(), assistant("", call({"expression": "<|python_end|><\\"})), result("<|output_end|>"), ANSWER],
    [user("  blanks at both ends \t"), assistant(" kept  ")],
    [user("\n\nlines\n\n"), assistant("kept\n")],
    [user("😀 👩‍👩‍👧 é café"), assistant("🇨🇭 \u200d ﷺ 日本語")],
    [user(""), assistant("")],
    [user([]), assistant([{"type": "text", "text": "parts"}])],
    [user("don't'll 12345 {{ 7*7 }} {% raw %}"), assistant("quotes \" and \\ and '")],
    [user("one"), assistant("two"), assistant("three"), user("four"), user("five")],
]


def rendered(messages, template, *, add_generation_prompt=False):
    """What chatmill reads in `messages`; the answer after a result continues its turn."""
    segments = conversation_segments(read(messages), template)
    if add_generation_prompt and messages[-1]["role"] == "tool":
        del segments[-2:]
    elif add_generation_prompt:
        segments += header_segments("assistant", template)
    return "".join(segment.text for segment in segments)


RENDER = """
const { Template } = require("@huggingface/jinja");
const templates = {};
const render = ({ template, ...values }) => (templates[template] ??= new Template(template)).render(values);
console.log(JSON.stringify(JSON.parse(require("fs").readFileSync(0)).map(render)));
"""


def run_node(script, values):
    """What a script prints as JSON; it finds the packages in the folder that NODE_PATH names."""
    given = json.dumps(values)
    output = subprocess.run(["node", "-e", script], input=given, capture_output=True, text=True, check=True).stdout
    return json.loads(output)


@cache
def has_node_package(name):
    if shutil.which("node") is None or "NODE_PATH" not in os.environ:
        return False
    return subprocess.run(["node", "-e", f"require.resolve('{name}')"], capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Each type and template, loaded by transformers and by chatmill."""
    result = {}
    for name, trainer in TRAINERS.items():
        folder = tmp_path_factory.mktemp(name)
        vocabulary = trainer.train(TEXTS, trainer.MINIMUM + 20, trainer.Settings())
        write_folder(add_special_tokens(vocabulary, []), folder / "tokenizer")
        for template in TEMPLATES:
            write_huggingface(folder / "tokenizer", folder / template, template, context=640)
            other = transformers.AutoTokenizer.from_pretrained(folder / template)
            result[name, template] = other, load(folder / template)
    return result


def read(messages):
    return from_messages({"messages": messages})


def rendered_by(tokenizer, messages, **options):
    return tokenizer.apply_chat_template(messages, tokenize=False, **options)


@st.composite
def conversations(draw):
    """Conversations as `messages`, with calls and results."""
    messages = []
    for role in draw(st.lists(st.sampled_from(["system", "user", "assistant", "tools"]), min_size=1, max_size=5)):
        messages.append(said(role, draw(TEXT)))
        if role == "tools":
            messages[-1] = assistant(draw(TEXT), call({"expression": draw(TEXT)}))
            messages += [result(draw(TEXT)), assistant([{"type": "text", "text": draw(TEXT)}]), user("so")]
    return messages


@pytest.mark.parametrize("template", TEMPLATES)
@given(messages=conversations())
@settings(max_examples=60)
def test_the_jinja_template_is_the_renderer(loaded, template, messages):
    other, tokenizer = loaded["bpe", template]
    expected = rendered(messages, template)
    assert rendered_by(other, messages) == expected
    prompt = rendered_by(other, messages, add_generation_prompt=True)
    assert prompt == expected + "".join(part.text for part in header_segments("assistant", template))
    ids = other.apply_chat_template(messages)["input_ids"]
    assert ids == tokenizer.encode_segments(conversation_segments(read(messages), template))[0]


@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("template", TEMPLATES)
def test_the_template_renders_what_prepare_reads(loaded, template, prompt):
    for messages in CONVERSATIONS:
        expected = rendered(messages, template, add_generation_prompt=prompt)
        assert rendered_by(loaded["bpe", template][0], messages, add_generation_prompt=prompt) == expected


@pytest.mark.skipif(not has_node_package("@huggingface/jinja"), reason="NODE_PATH names no @huggingface/jinja")
def test_javascript_renders_what_prepare_reads():
    common = {"bos_token": "<|bos|>"}
    cases = list(product(TEMPLATES, CONVERSATIONS, [False, True]))
    values = [
        common | {"template": chat_template(template), "messages": messages, "add_generation_prompt": prompt}
        for template, messages, prompt in cases
    ]
    expected = [rendered(messages, name, add_generation_prompt=prompt) for name, messages, prompt in cases]
    assert run_node(RENDER, values) == expected


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
    train_tokenizer.main(
        folder / "chat.jsonl", ANY_FOLDER, ANY_FOLDER, folder / "tokenizer", initial=None, parameters=parameters
    )
    write_huggingface(folder / "tokenizer", folder / "out", "chatml")
    (folder / "out" / "genai_config.json").write_text(json.dumps(GENAI_CONFIG))
    return onnxruntime_genai.Tokenizer(str(folder / "out")), load(folder / "out")


def test_onnxruntime_genai_renders_what_prepare_reads(genai):
    other, tokenizer = genai
    for messages in CONVERSATIONS:
        for prompt in (False, True):
            text = other.apply_chat_template(json.dumps(messages), add_generation_prompt=prompt)
            assert text == rendered(messages, "chatml", add_generation_prompt=prompt)
        ids = other.encode(other.apply_chat_template(json.dumps(messages), add_generation_prompt=False))
        assert list(ids) == tokenizer.encode_segments(conversation_segments(read(messages)))[0]
