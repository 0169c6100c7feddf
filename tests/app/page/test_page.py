"""The page that is one file, and its engine in Chromium."""

import base64
import hashlib
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from playwright.sync_api import Error, expect

from chatmill.app import cli
from chatmill.app.commands.page import build_page
from chatmill.app.page.content import read_content, template_content, to_javascript, tokenizer_content, weights_text
from chatmill.calculator import calculate
from chatmill.checkpoints.configuration import Variant
from chatmill.conversation import CONTROL_TOKENS, Message
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.chat_template import open_template
from chatmill.inference.model_loading import load_model
from chatmill.inference.template_layout import known_layouts
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.types.byte import Settings, train
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens
from support.chat_page import finished
from support.chromium import visit
from support.exported import TYPES, export
from support.page_engine import (
    ANSWER,
    CALCULATE,
    ENCODE,
    OPEN_TOKENIZER,
    PROMPT,
    dequantized,
    open_content,
    write_engine,
)
from support.texts import NAUGHTY, WORDS
from support.tiny import CONFIG, write_model

HOSTILE = '</script><script>alert(1)</script><!--"&'
VARIANTS = {
    "qwen3": Variant(),
    "qwen2": Variant(qk_norm=False, qkv_bias=True),
    "llama": Variant(qk_norm=False),
    "windowed": Variant(qk_norm=False, sliding_window=24),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def engine(browser, tmp_path):
    """A page with the engine alone."""
    page = browser.new_context(offline=True).new_page()
    page.goto(write_engine(tmp_path / "engine.html"))
    yield page
    page.context.close()


def test_a_page_has_the_same_bytes_each_time(model):
    assert build_page(model, "tiny") == build_page(model, "tiny")


@pytest.mark.slow
def test_every_pair_of_bytes_of_the_weights_is_read_as_it_was_written(engine, tmp_path):
    data = bytes(byte for first in range(256) for second in range(256) for byte in (first, second))
    file = tmp_path / "engine.html"
    file.write_text(f'{file.read_text()}<script type="text/plain" id="weights">{weights_text(data)}</script>')
    engine.reload()
    read = "async (size) => [...(await ready).readWeights(document.getElementById('weights').textContent, size)]"
    assert bytes(engine.evaluate(read, len(data))) == data
    with pytest.raises(Error, match="the page is damaged"):
        engine.evaluate(read, len(data) - 1)


def test_only_the_script_of_the_page_may_run_and_nothing_may_connect(model):
    page = build_page(model, HOSTILE).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    hashes = set(re.findall(r"'sha256-([^']+)'", policy))
    scripts = re.findall(r'<script id="program">(.*?)</script>', page, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digests = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts + styles}
    assert (len(scripts), digests) == (1, hashes)
    assert policy.startswith("default-src 'none'; ") and "connect-src" not in policy and "unsafe-inline" not in policy


def test_a_name_is_text_wherever_it_stands(model):
    page = build_page(model, HOSTILE).decode()
    assert page.count("alert(1)") == 2
    assert "<script>alert" not in page and '--"' not in page.split("<body")[0]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"(?i:'s|k)", "(?:'[sSſ]|[kK\u212a])"),
        (r"\s++$", r"(?=(?<p0>\p{White_Space}+))\k<p0>(?![\s\S])"),
        (r"[^\s\p{L}]?+.", r"(?=(?<p0>[^\p{White_Space}\p{L}]?))\k<p0>[^\n]"),
        (r"[\[\]&]+", r"[\x5b\x5d&]+"),
        (r"\p{Han}{1,3}|\P{N}\-", r"\p{Script=Han}{1,3}|\P{N}\x2d"),
    ],
)
def test_patterns_are_translated(pattern, expected):
    assert to_javascript(pattern) == expected


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"model_type": "mamba"}, ""), ({"vocab_size": 1 << 24}, "are more than the 375 that fit into one")],
)
def test_a_model_that_a_page_cannot_run_is_one_line_and_writes_nothing(changed, message, tmp_path, capsys, model):
    folder = shutil.copytree(model, tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changed))
    assert cli.main(["page", "--model", str(folder), "-o", str(tmp_path / "chat.html")]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "chat.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", TYPES)
def test_each_type_gives_the_same_ids(name, engine, tmp_path):
    tokenizer = export(name, tmp_path).original
    texts = [
        *NAUGHTY,
        *WORDS,
        " ".join(WORDS),
        *CONTROL_TOKENS,
        "don't ſ'ſ DON'T\r\n\r\n  12345٣Ⅷ",
        "é\u0301\u2581 \u2581",
    ]
    engine.evaluate(OPEN_TOKENIZER, tokenizer_content(tokenizer))
    assert engine.evaluate(ENCODE, texts) == tokenizer.encode(texts)


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("template", ["chatml", "markers"])
def test_answers_are_those_of_pytorch_on_the_same_weights(name, template, engine, tmp_path):
    folder = write_model(tmp_path / "model", replace(CONFIG, variant=VARIANTS[name], hidden_size=40), template)
    content, loaded = read_content(folder, "tiny"), load_model(folder, device="cpu", threads=1)
    loaded.engine.model.load_state_dict(dequantized(content))
    session = ChatSession(loaded.engine, loaded.tokenizer, loaded.template, loaded.stop_ids)
    talk = [Message.from_text(role, f"Hi <|im_end|> {role} é") for role in ("system", "user", "assistant", "user")]
    long = [Message.from_text(role, f"{role} {'word ' * 20}") for role in ("user", "assistant") * 5]
    for conversation in (talk, talk[:2], [*long, talk[-1]]):
        messages = [{"role": one.role, "content": one.text} for one in conversation]
        session.greedy_reply(conversation, 40)
        open_content(engine, content)
        found = engine.evaluate(ANSWER, [messages, 40])
        assert (found["prompt"], found["ids"]) == (session.prompt_ids, session.answer_ids)


@pytest.mark.slow
@pytest.mark.parametrize("name", known_layouts(""))
@pytest.mark.parametrize("leading_space", [False, True])
def test_prompts_of_external_layouts_are_the_same(name, leading_space, engine, tmp_path):
    content = read_content(write_model(tmp_path / "model"), "tiny")
    controls = {control for one in known_layouts("").values() for control in re.findall(r"<\|?\w+\|?>|</s>", str(one))}
    names = sorted(controls - {*CONTROL_TOKENS, "<SYS>"})  # which is text to Llama 2's tokenizer
    vocabulary = add_special_tokens(train([], 256, Settings()), names)
    tokenizer = ChatTokenizer(vocabulary, leading_space=leading_space)
    template = open_template("", tokenizer.special, name=name, bos="<|bos|>", leading_space=leading_space)
    content.description.update(
        tokenizer=tokenizer_content(tokenizer),
        template=template_content(template, tokenizer),
        shape=content.description["shape"] | {"vocab_size": len(vocabulary.tokens)},
    )
    open_content(engine, content)
    talk = [Message.from_text(role, f"Hi <|im_end|></s> {role} é") for role in ("system", "user", "assistant", "user")]
    for conversation in (talk, talk[1:], talk[1:2], talk[:3]):
        continues = conversation[-1].role == "assistant"
        segments = template.prompt(conversation, continues=continues)
        messages = [{"role": one.role, "content": one.text} for one in conversation]
        assert engine.evaluate(PROMPT, messages) == tokenizer.encode_segments(segments)[0]


@pytest.mark.slow
def test_the_calculator_gives_the_same_results(engine):
    generator = np.random.default_rng(3)
    symbols = list("0123456789..++--**//() ")
    texts = ["".join(generator.choice(symbols, generator.integers(1, 24))) for _ in range(2000)]
    texts += [f"{a}/{b}" for a in range(-9, 10) for b in range(-9, 10)]
    assert engine.evaluate(CALCULATE, texts) == [calculate(text) for text in texts]


@pytest.mark.slow
def test_a_page_from_disk_chats_without_a_network(browser, tmp_path, model):
    model, file = shutil.copytree(model, tmp_path / "model"), tmp_path / "chat.html"
    (tmp_path / "metrics").mkdir()
    fingerprint = load_model(model, "cpu").tokenizer.fingerprint
    (tmp_path / "metrics/evaluate.json").write_text(json.dumps({"tokenizer": {"fingerprint": fingerprint}}))
    (tmp_path / "metrics/mix.json").write_text('{"read": {"<b>": {"messages": {"kept": 1}}}}')
    (tmp_path / "samples.jsonl").write_text('{"prompt": "Hi", "answer": "Ho", "stopped": true}')
    assert cli.main(["page", "--model", str(model), "-o", str(file), "--name", HOSTILE]) == 0
    with visit(browser, f"file://{file}") as page:
        requests = []
        page.on("request", lambda request: requests.append(request.url))
        expect(page.locator("#model")).to_have_value(HOSTILE)
        expect(page.locator("#start")).to_contain_text("Trained on <b> (1 message).")
        page.get_by_role("button", name="Hi", exact=True).click()
        answer = finished(page)
        expect(page.locator("#start")).to_be_hidden()
        answer.get_by_role("button", name="Tokens").click()
        expect(answer.locator(".tokens .token").first).to_have_text("<|bos|>")
        page.reload()
        expect(page.locator(".exchange .words")).to_have_text("Hi")
        assert all(url.startswith(("file:", "blob:")) for url in requests)
