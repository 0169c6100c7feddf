"""The engine of `chatmill page` in a browser, without the page around it."""

import base64
import json

import torch

from chatmill.app.commands.page import PAGE, bundle
from chatmill.app.page.content import weights_text

EXPOSED = ("answering", "backend", "calculator", "detokenizer", "model", "sampler", "template", "tokenizer")
START = "globalThis.ready = $load('page/backend.js').then((backend) => (globalThis.backend = backend));"
OPEN = """async ([content, weights, wasm]) => {
  const backend = await ready;
  globalThis.answering = backend.open(content, weights, wasm);
}"""
OPEN_TOKENIZER = """async (content) => {
  const { Tokenizer } = await load("page/tokenizer.js");
  globalThis.tokenizer = new Tokenizer((await ready).readVocabulary(content));
}"""
ENCODE = "(texts) => texts.map((text) => tokenizer.encode(text))"
ANSWER = """async ([messages, most]) => {
  const ids = [];
  let prompt, timings;
  for await (const chunk of answering.answer({ messages, max_tokens: most }, async () => true)) {
    if (chunk.prompt_token_ids) prompt = chunk.prompt_token_ids;
    if (chunk.timings) timings = chunk.timings;
    ids.push(...(chunk.choices?.[0].token_ids ?? []));
  }
  return { prompt, ids, timings };
}"""
PROMPT = """async (messages) => {
  const { toConversation } = await load("page/answering.js");
  return answering.promptIds(toConversation(messages));
}"""
CALCULATE = """async (texts) => {
  const { calculate } = await load("page/calculator.js");
  return texts.map(calculate);
}"""


def write_engine(file):
    """Write a page with the engine's modules alone."""
    modules = {f"page/{name}.js": PAGE.joinpath(f"{name}.js").read_text("utf-8") for name in EXPOSED}
    program = bundle(modules, {}, f"globalThis.load = $load;\n{START}")
    file.write_text(f"<!doctype html><meta charset=utf-8><script>{program}</script>", encoding="utf-8")
    return f"file://{file}"


def open_content(page, content):
    """Open a PageContent in the engine, which then answers `ANSWER`."""
    wasm = base64.b64encode(PAGE.joinpath("kernel.wasm").read_bytes()).decode()
    description = json.loads(json.dumps(content.description))
    page.evaluate(OPEN, [description, weights_text(content.weights), wasm])


def dequantized(content):
    """The weights of a PageContent in float32, by name."""
    tensors, weights = content.description["tensors"], {}
    place = matrix = 4 * sum(one["rows"] or one["columns"] for one in tensors)
    place = 0
    for one in tensors:
        count = one["rows"] or one["columns"]
        values = torch.frombuffer(bytearray(content.weights[place : place + 4 * count]), dtype=torch.float32)
        place += 4 * count
        if one["rows"]:
            size = one["rows"] * one["columns"]
            rounded = torch.frombuffer(bytearray(content.weights[matrix : matrix + size]), dtype=torch.int8)
            values = values[:, None] * rounded.view(one["rows"], one["columns"])
            matrix += size
        weights[one["name"]] = values
    return weights
