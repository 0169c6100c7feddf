"""Conversations as other runtimes render and encode them with the files of an export, compared with chatmill.

    python tests/benchmarks/templates.py [MODEL] [--llama-cpp SOURCE]

MODEL is a folder that export_onnx wrote (default: data/export/onnx). SOURCE is the source of llama.cpp, of which the
renderer of chat templates is compiled; it is in the source of llama-cpp-python on PyPI, as vendor/llama.cpp. Packages
of JavaScript are found in the folder that NODE_PATH names. A runtime that is absent is named and left out. At the end
ONNX Runtime GenAI answers PROMPTS, greedily as a chat does; a calculation is given with the calculator's result.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from chatmill.conversation import BOS, Message, TemplateName
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.model_loading import load_model
from chatmill.tokenizer.formats.tokenizer_loading import load as load_tokenizer
from support.chat_templates import (
    CONVERSATIONS,
    RENDER,
    assistant,
    call,
    has_node_package,
    result,
    run_node,
    segments_of,
)

PROMPTS = [
    "Hello there!",
    "What's the opposite of being strong?",
    "Could you spell garden for me?",
    "Do you sleep at night?",
    "Type <|im_end|>, please.",
    "What would 48 times 7 be?",
]
CALL = [assistant("", call('{"expression": "48*7"}')), result("336")]  # after the last of PROMPTS
MAX_LENGTH = 200  # tokens of a prompt and its answer
CASES = [(messages, prompt) for messages in CONVERSATIONS for prompt in (False, True)]
ENCODE = """
const { AutoTokenizer, env } = require("@huggingface/transformers");
const { folder, cases } = JSON.parse(require("fs").readFileSync(0));
Object.assign(env, { allowRemoteModels: false, localModelPath: "" });
AutoTokenizer.from_pretrained(folder).then((tokenizer) => console.log(JSON.stringify(cases.map(([messages, prompt]) => [
  tokenizer.apply_chat_template(messages, { add_generation_prompt: prompt, tokenize: false }),
  tokenizer.apply_chat_template(messages, { add_generation_prompt: prompt, return_tensor: false, return_dict: false }),
]))));
"""
Rendered = tuple[str, list[int] | None]  # the text, and its ids from a runtime that encodes


def values(messages: list[dict[str, Any]], prompt: bool) -> dict[str, Any]:
    """The values of a template's variables."""
    return {"messages": messages, "add_generation_prompt": prompt, "bos_token": BOS}


def in_transformers(folder: Path) -> Iterator[Rendered]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    for messages, prompt in CASES:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        yield text, tokenizer.apply_chat_template(messages, add_generation_prompt=prompt)["input_ids"]


def in_genai(folder: Path) -> Iterator[Rendered]:
    from onnxruntime_genai import Tokenizer

    tokenizer = Tokenizer(str(folder))
    for messages, prompt in CASES:
        text = tokenizer.apply_chat_template(json.dumps(messages), add_generation_prompt=prompt)
        yield text, tokenizer.encode(text).tolist()


def in_jinja_js(folder: Path) -> Iterator[Rendered]:
    template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for text in run_node(RENDER, [{"template": template} | values(*case) for case in CASES]):
        yield text, None


def in_transformers_js(folder: Path) -> Iterator[Rendered]:
    yield from map(tuple, run_node(ENCODE, {"folder": str(folder.resolve()), "cases": CASES}))


def in_llama_cpp(folder: Path, source: Path) -> Iterator[Rendered]:
    common = source / "common"
    own = Path(__file__).with_name("llama_template.cpp")
    inputs = "".join(json.dumps(values(*case)) + "\n" for case in CASES)
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch) / "render"
        sources = [own, *sorted(common.glob("jinja/*.cpp")), common / "json.cpp", common / "unicode.cpp"]
        includes = [f"-I{source / name}" for name in ("common", "vendor", "ggml/include")]
        subprocess.run(["g++", "-std=c++17", *includes, *sources, "-o", program], check=True)
        command = [program, folder / "chat_template.jinja"]
        lines = subprocess.run(command, input=inputs, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    yield from ((json.loads(line), None) for line in lines)


def compare(folder: Path, runtime: Callable[[Path], Iterator[Rendered]]) -> str:
    """How many texts and lists of ids of a runtime are chatmill's."""
    tokenizer, name = load_tokenizer(folder), template_name(folder)
    texts, ids = [], []
    for (messages, prompt), (text, found) in zip(CASES, runtime(folder), strict=True):
        segments = segments_of(messages, name, add_generation_prompt=prompt)
        texts.append(text == "".join(segment.text for segment in segments))
        if found is not None:
            ids.append(found == tokenizer.encode_segments(segments)[0])
    return f"texts equal: {sum(texts)} of {len(texts)}" + (f", ids: {sum(ids)} of {len(ids)}" if ids else "")


def template_name(folder: Path) -> TemplateName:
    """The template with which a model was trained."""
    name: TemplateName = json.loads((folder / "config.json").read_text(encoding="utf-8"))["chatmill"]["template"]
    return name


def answers_of_genai(folder: Path) -> Iterator[str]:
    """The greedy answer to each of PROMPTS."""
    import onnxruntime_genai as genai

    model = genai.Model(str(folder))
    tokenizer = genai.Tokenizer(model)
    for words in PROMPTS:
        messages = [{"role": "user", "content": words}, *(CALL if words == PROMPTS[-1] else [])]
        ids = tokenizer.encode(tokenizer.apply_chat_template(json.dumps(messages), add_generation_prompt=True))
        settings = genai.GeneratorParams(model)
        settings.set_search_options(max_length=MAX_LENGTH)
        generator = genai.Generator(model, settings)
        generator.append_tokens(ids)
        while not generator.is_done():
            generator.generate_next_token()
        yield tokenizer.decode(generator.get_sequence(0)[len(ids) :])


def compare_answers(folder: Path) -> str:
    """How many answers of ONNX Runtime GenAI are those of a chat, and the prompts of the others."""
    session = ChatSession(*load_model(folder, "cpu", 1))
    expected = (session.greedy_reply([Message.from_text("user", words)], MAX_LENGTH)[0].text for words in PROMPTS)
    answers = zip(PROMPTS, answers_of_genai(folder), expected, strict=True)
    differing = [(words, found, chat) for words, found, chat in answers if found != chat]
    return f"answers equal: {len(PROMPTS) - len(differing)} of {len(PROMPTS)}" + "".join(
        f"\n  {one}" for one in differing
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=Path("data/export/onnx"))
    parser.add_argument("--llama-cpp", type=Path, metavar="SOURCE")
    options = parser.parse_args()
    runtimes = {
        "transformers": find_spec("transformers") and in_transformers,
        "ONNX Runtime GenAI": find_spec("onnxruntime_genai") and in_genai,
        "@huggingface/jinja": has_node_package("@huggingface/jinja") and in_jinja_js,
        "@huggingface/transformers": has_node_package("@huggingface/transformers") and in_transformers_js,
        "llama.cpp": options.llama_cpp and (lambda folder: in_llama_cpp(folder, options.llama_cpp)),
    }
    for name, runtime in runtimes.items():
        print(
            f"{name:26}",
            compare(options.model, runtime) if runtime else "not installed, or its place not given",
            flush=True,
        )
    if runtimes["ONNX Runtime GenAI"]:
        print(f"{'ONNX Runtime GenAI':26}", compare_answers(options.model))


if __name__ == "__main__":
    main()
