"""A page of `chatmill page` in Chromium: its size, when it is ready, its speed, and how equal it is to chatmill.

    python tests/benchmarks/page.py [MODEL] [CONVERSATIONS] [--texts FOLDER] [--limit N] [--tokenizers FILE ...]

MODEL is a folder of a model (default: data/model), CONVERSATIONS a file that mix wrote (default: data/chat/test.jsonl).
FOLDER has real texts, as those of tests/support/hard_texts.py; without it, the texts are made. `--tokenizers` compares
the ids of external ones, too. The speed of 30 million weights is that of random ones. Answers are compared with
PyTorch's on the weights of the page, int8 and scales multiplied in float32. Where they differ, the row has the gaps
between the two largest logits at the first other token.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from playwright.sync_api import Page
from safetensors.torch import save_file

from chatmill.app.commands.page import build_page
from chatmill.app.page.content import PageContent, read_content, tokenizer_content, weights_text
from chatmill.checkpoints.configuration import ModelConfig, to_hugging_face
from chatmill.conversation import Conversation, is_document, parse
from chatmill.engines.pytorch_engine import PyTorchEngine
from chatmill.inference.chat_session import ChatSession, PromptBuilder, common_prefix_length
from chatmill.inference.model_loading import load_model
from chatmill.model.chat_model import ChatModel
from chatmill.record_files import read_records
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.formats.tokenizer_loading import load as load_tokenizer
from support.chromium import chromium
from support.exported import TYPES, export
from support.hard_texts import is_refused, make_texts
from support.page_engine import ANSWER, ENCODE, OPEN_TOKENIZER, dequantized, open_content, write_engine
from support.texts import NAUGHTY

MAX_TOKENS = 64  # of an answer
NEAR_TIE = 1e-3  # between the two largest logits
TIMINGS = """() => new Promise((resolve) => {
  const opening = indexedDB.open(document.documentElement.dataset.history);
  opening.onsuccess = () => {
    const reading = opening.result.transaction("conversations").objectStore("conversations").getAll();
    reading.onsuccess = () => resolve(reading.result.at(-1).exchanges.at(-1).answers[0].timings);
  };
})"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", default=Path("data/model"))
    parser.add_argument("conversations", type=Path, nargs="?", default=Path("data/chat/test.jsonl"))
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--limit", type=int, default=10_000, help="texts for each tokenizer")
    parser.add_argument("--tokenizers", type=Path, nargs="+", default=[])
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| what | page | |\n|---|---|---|")
    with chromium() as browser, tempfile.TemporaryDirectory() as scratch:
        context = browser.new_context(offline=True)
        measure_page(context.new_page(), options.model, Path(scratch) / "chat.html")
        engine = context.new_page()
        engine.goto(write_engine(Path(scratch) / "engine.html"))
        compare_ids(engine, Path(scratch), options.texts, options.limit)
        compare_answers(engine, options.model, options.conversations, options.prompts)
        large = write_random(options.model, Path(scratch) / "random-30M")
        measure_page(context.new_page(), large, Path(scratch) / "large.html")
        for path in options.tokenizers:
            try:
                tokenizer = load_tokenizer(path)
                compare_tokenizer(
                    engine, f"{path.parent.name}/{path.name}", tokenizer, texts_of(options.texts, options.limit)
                )
            except ValueError as error:
                print(f"| ids, {path.parent.name}/{path.name} | refused | {error} |")


def measure_page(page: Page, model: Path, file: Path) -> None:
    """Print the size, the time until the model is ready, and the rate of a greedy answer in the page itself."""
    content = read_content(model, model.name)
    file.write_bytes(build_page(model, model.name))
    size, weights = file.stat().st_size, sum(one["rows"] * one["columns"] for one in content.description["tensors"])
    encoded = len(weights_text(content.weights).encode())
    rest = f"{encoded / weights:.3f} times and {(size - encoded) / 1000:,.0f} kB"
    print(f"| bytes, {model.name} | {size:,} | {weights:,} weights: {rest} |", flush=True)
    page.goto(f"file://{file}")
    page.wait_for_selector("html[data-ready]", timeout=60_000)
    print(f"| ready, ms after the page was opened | {float(page.get_attribute('html', 'data-ready')):.0f} | |")
    for _ in range(3):
        page.get_by_label("Message", exact=True).fill("Tell me about your day.")
        page.keyboard.press("Enter")
        page.locator(".exchange").last.get_by_role("button", name="Regenerate").wait_for(timeout=120_000)
    timings = page.evaluate(TIMINGS)
    speed = f"{timings['tokens_per_second']:,.0f} tokens/s, the first after {timings['first_token_ms']:.1f} ms"
    print(f"| answer in the page | {speed} | of {timings['completion_tokens']} tokens |")


def texts_of(folder: Path | None, limit: int = 10_000) -> list[str]:
    """The naughty strings and texts of all categories in equal numbers."""
    groups = make_texts(folder)
    share = -(-limit // len(groups))
    others = [text for texts in groups.values() for text in texts[:share]]
    return [*NAUGHTY, *others, *(text for texts in groups.values() for text in texts[share:])][:limit]


def compare_ids(page: Page, scratch: Path, folder: Path | None, limit: int) -> None:
    """Print for each type of tokenizer on how many texts the ids are equal."""
    for name in TYPES:
        (scratch / name).mkdir()
        compare_tokenizer(page, name, export(name, scratch / name).original, texts_of(folder, limit))


def compare_tokenizer(page: Page, name: str, tokenizer: ChatTokenizer, texts: list[str]) -> None:
    """Print on how many texts the ids are equal, and the shortest others."""
    page.evaluate(OPEN_TOKENIZER, tokenizer_content(tokenizer))
    given = [text for text in texts if not is_refused(tokenizer, text)]
    found = [ids for start in range(0, len(given), 500) for ids in page.evaluate(ENCODE, given[start : start + 500])]
    other = [text for text, ids, own in zip(given, found, tokenizer.encode(given), strict=True) if ids != own]
    shown = ", ".join(ascii(text)[:40] for text in sorted(other, key=len)[:3])
    print(f"| ids, {name} | {len(given) - len(other):,} of {len(given):,} | {shown} |", flush=True)


def compare_answers(page: Page, model: Path, conversations: Path, limit: int) -> None:
    """Print on how many prompts the ids of the prompt and of the greedy answer are equal to those in PyTorch."""
    content = read_content(model, model.name)
    open_content(page, content)
    loaded = load_model(model, device="cpu", threads=1)
    engine = loaded.engine
    if not isinstance(engine, PyTorchEngine):
        raise SystemExit(f"{model}: name a folder of weights")
    replace_weights(engine, content)
    session = ChatSession(engine, loaded.tokenizer, loaded.template, loaded.stop_ids, loaded.tools)
    prompts = PromptBuilder(engine, loaded.tokenizer, loaded.template, loaded.stop_ids, loaded.tools)
    equal_prompts = equal = near = count = 0
    others, started = [], time.perf_counter()
    for conversation in prompts_of(conversations, limit):
        session.greedy_reply(prompts.declare(conversation), MAX_TOKENS)
        found = page.evaluate(ANSWER, [messages_of(conversation), MAX_TOKENS])
        count += 1
        equal_prompts += found["prompt"] == session.prompt_ids
        if found["ids"] == session.answer_ids:
            equal += 1
            continue
        gap = gap_at_difference(engine, session.prompt_ids, session.answer_ids, found["ids"])
        near += gap <= NEAR_TIE
        others.append(f"{gap:.1e}")
    seconds = time.perf_counter() - started
    print(f"| prompts with equal ids | {equal_prompts} of {count} | |")
    note = f"{near} others near ties; gaps {', '.join(others)}" if others else ""
    print(f"| greedy answers equal to PyTorch's | {equal} of {count} | {note} ({seconds:.0f} s) |", flush=True)


def replace_weights(engine: PyTorchEngine, content: PageContent) -> None:
    """Give PyTorch the weights of the page."""
    engine.model.load_state_dict(dequantized(content))


def prompts_of(file: Path, limit: int) -> list[Conversation]:
    """Conversations up to their last question."""
    found: list[Conversation] = []
    for record in read_records(file):
        conversation = [] if is_document(record.text) else parse(record.text)
        turns = [index for index, message in enumerate(conversation) if message.role == "user"]
        if turns:
            found.append(conversation[: turns[-1] + 1])
        if len(found) == limit:
            break
    return found


def messages_of(conversation: Conversation) -> list[dict[str, Any]]:
    """The messages of a request, as the page sends them."""
    messages: list[dict[str, Any]] = []
    for message in conversation:
        for part in message.parts:
            if part.kind == "call":
                call = {"name": "calculator", "arguments": json.dumps({"expression": part.text})}
                messages.append({"role": "assistant", "content": "", "tool_calls": [{"function": call}]})
            else:
                messages.append({"role": "tool" if part.kind == "output" else message.role, "content": part.text})
    return messages


def gap_at_difference(engine: PyTorchEngine, prompt: list[int], own: list[int], other: list[int]) -> float:
    """The gap between the two largest logits where two answers part."""
    engine.rewind(0)
    logits = np.sort(engine.append([*prompt, *own[: common_prefix_length(own, other)]]))
    return float(logits[-1] - logits[-2])


def write_random(model: Path, folder: Path) -> Path:
    """Write a model of 30 million random weights with the tokenizer of another."""
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json", "manifest.json"))
    config = ModelConfig.from_depth(8, vocab_size=16384, context=1024, width=512)
    torch.manual_seed(0)
    weights = {
        name: torch.ones(weight.shape) if weight.ndim == 1 else torch.randn(weight.shape) / weight.shape[1] ** 0.5
        for name, weight in meta_model(config).state_dict().items()
    }
    save_file(weights, folder / "model.safetensors")
    own = json.loads((model / "config.json").read_text())["chatmill"]
    (folder / "config.json").write_text(json.dumps(to_hugging_face(config) | {"chatmill": own}))
    return folder


def meta_model(config: ModelConfig) -> ChatModel:
    with torch.device("meta"):
        return ChatModel(config)


if __name__ == "__main__":
    main()
