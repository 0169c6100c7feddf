"""The default model in runtimes made elsewhere: ids, template, greedy answers, ends and the calculator, as in chatmill.

    python tests/benchmarks/runtimes.py [--packages FOLDER] [--llama-server PROGRAM]

Each runtime loads the files of data/model, data/export/onnx or data/export/gguf, renders the 20 prompts of
data/raw/prompts/free.txt by its own template engine, encodes them by its own tokenizer and answers greedily; the
calculator is declared as the template's `tools`. Where an answer ends with a call, its result is a message of the role
`tool`, and the runtime renders and answers again. FOLDER has the packages of JavaScript, after `npm install
--ignore-scripts @huggingface/transformers @huggingface/jinja @huggingface/tokenizers onnxruntime-node node-llama-cpp`
there. A runtime that is absent is named and left out.
"""

import argparse
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))

from chatmill.calculator import calculate
from chatmill.conversation import conversation_segments, header_segments
from chatmill.datasets.formats.chats import from_messages
from chatmill.inference.model_loading import LoadedModel, load_model

ROOT = Path(__file__).parents[2]
PROMPTS = ROOT / "data/raw/prompts/free.txt"
PROGRAM = Path(__file__).with_suffix(".js")
TOOLS = [{"type": "function", "function": {"name": "calculator", "description": "", "parameters": {}}}]
MAX_TOKENS, CONTEXT = 64, 1024
PORT = 8391
Messages = list[dict[str, Any]]


class Response(NamedTuple):
    """What a runtime makes of messages."""

    prompt: str  # as its template renders it
    ids: list[int]  # of the prompt
    answer: list[int]  # ids up to one that ends it, which may be left out


class Runtime(Protocol):
    """Renders messages with the calculator declared, encodes them, and answers greedily."""

    def __call__(self, messages: Messages) -> Response: ...


class Chatmill:
    """chatmill's own engine, with the ids that it decides for."""

    def __init__(self, path: Path) -> None:
        self.loaded: LoadedModel = load_model(path, "cpu", 1)

    def __call__(self, messages: Messages) -> Response:
        declared = [{"role": "system", "content": "Tools: calculator"}, *messages]
        template = self.loaded.engine.template
        segments = conversation_segments(from_messages({"messages": declared}), template)
        if messages[-1]["role"] == "tool":
            del segments[-2:]  # the answer after a result continues its turn
        else:
            segments += header_segments("assistant", template)
        ids = self.loaded.tokenizer.encode_segments(segments)[0]
        self.loaded.engine.rewind(0)
        answer, unread = [], list(ids)
        while len(answer) < MAX_TOKENS and not self.loaded.stop_ids & set(answer[-1:]):
            unread = [int(self.loaded.engine.append(unread).argmax())]
            answer += unread
        return Response("".join(segment.text for segment in segments), ids, answer)


class Transformers:
    """transformers' tokenizer and `generate`."""

    def __init__(self, folder: Path) -> None:
        import transformers

        transformers.logging.set_verbosity_error()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()

    def __call__(self, messages: Messages) -> Response:
        text = self.tokenizer.apply_chat_template(messages, tools=TOOLS, add_generation_prompt=True, tokenize=False)
        given = self.tokenizer(text, add_special_tokens=False, return_tensors="pt")
        ids = given["input_ids"][0].tolist()
        out = self.model.generate(**given, max_new_tokens=MAX_TOKENS, do_sample=False)[0].tolist()
        return Response(text, ids, out[len(ids) :])


class GenAI:
    """ONNX Runtime GenAI."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime_genai

        self.library = onnxruntime_genai
        self.model = onnxruntime_genai.Model(str(folder))
        self.tokenizer = onnxruntime_genai.Tokenizer(self.model)

    def __call__(self, messages: Messages) -> Response:
        content, tools = json.dumps(messages), json.dumps(TOOLS)
        text = self.tokenizer.apply_chat_template(content, tools=tools, add_generation_prompt=True)
        ids = self.tokenizer.encode(text).tolist()
        settings = self.library.GeneratorParams(self.model)
        settings.set_search_options(max_length=len(ids) + MAX_TOKENS, do_sample=False)
        generator = self.library.Generator(self.model, settings)
        generator.append_tokens(ids)
        while not generator.is_done():
            generator.generate_next_token()
        return Response(text, ids, generator.get_sequence(0).tolist()[len(ids) :])


class LlamaCpp:
    """llama-cpp-python, with a cache in float32."""

    def __init__(self, file: Path) -> None:
        import llama_cpp
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        kind = llama_cpp.GGML_TYPE_F32
        self.model = llama_cpp.Llama(str(file), n_ctx=CONTEXT, type_k=kind, type_v=kind, verbose=False)
        names = [self.model._model.token_get_text(i) for i in (self.model.token_eos(), self.model.token_bos())]
        self.formatter = Jinja2ChatFormatter(self.model.metadata["tokenizer.chat_template"], *names)
        vocabulary = llama_cpp.llama_model_get_vocab(self.model.model)
        self.ends: Callable[[int], bool] = lambda i: llama_cpp.llama_vocab_is_eog(vocabulary, i)

    def __call__(self, messages: Messages) -> Response:
        text = self.formatter(messages=messages, tools=TOOLS).prompt
        ids = self.model.tokenize(text.encode(), add_bos=True, special=True)
        answer: list[int] = []
        for i in self.model.generate(ids, temp=0.0, top_k=1, repeat_penalty=1.0):
            answer.append(i)
            if self.ends(i) or len(answer) == MAX_TOKENS:
                break
        return Response(text, ids, answer)


class LlamaServer:
    """llama.cpp's llama-server, over HTTP, with its own Jinja."""

    def __init__(self, program: Path, file: Path, resources: ExitStack) -> None:
        command = [
            program,
            "-m",
            file,
            "--port",
            PORT,
            "-c",
            CONTEXT,
            "-ctk",
            "f32",
            "-ctv",
            "f32",
            "--jinja",
            "-np",
            1,
        ]
        options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(list(map(str, command)), **options)
        resources.callback(process.wait)
        resources.callback(process.kill)
        for _ in range(300):
            try:
                self._get("health")
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"{program} does not answer")

    def _get(self, route: str, content: Any = None) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{PORT}/{route}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)

    def __call__(self, messages: Messages) -> Response:
        text = self._get("apply-template", {"messages": messages, "tools": TOOLS})["prompt"]
        ids = self._get("tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
        asked = {"prompt": ids, "n_predict": MAX_TOKENS, "temperature": 0, "top_k": 1, "return_tokens": True}
        found = self._get("completion", asked | {"cache_prompt": False, "repeat_penalty": 1.0})
        return Response(text, ids, found["tokens"])


class Node:
    """A runtime of JavaScript, by the program beside this one."""

    def __init__(self, name: str, path: Path, packages: Path, resources: ExitStack) -> None:
        program = PROGRAM.read_text(encoding="utf-8")
        command = ["node", "--input-type=module", "-e", program, name, str(path.resolve()), str(MAX_TOKENS)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, cwd=packages, **pipes)
        resources.callback(self.process.wait)
        resources.callback(self.process.kill)

    def __call__(self, messages: Messages) -> Response:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"messages": messages, "tools": TOOLS}) + "\n")
        self.process.stdin.flush()
        return Response(*json.loads(self.process.stdout.readline()))


def chat(runtime: Runtime, prompt: str, own: Chatmill) -> list[Response]:
    """The responses to a prompt: one, and another after each call of the calculator."""
    messages: Messages = [{"role": "user", "content": prompt}]
    responses = [runtime(messages)]
    while len(responses) < 4 and (call := _call(responses[-1].answer, own)):
        arguments = json.dumps({"expression": call})
        request = {"type": "function", "id": "1", "function": {"name": "calculator", "arguments": arguments}}
        messages = [*messages, {"role": "assistant", "content": "", "tool_calls": [request]}]
        messages.append({"role": "tool", "content": calculate(call)})
        responses.append(runtime(messages))
    return responses


def _call(answer: Sequence[int], own: Chatmill) -> str | None:
    """The expression that an answer ends with a call of; the runtime may leave out the last token of the call."""
    text = b"".join(own.loaded.tokenizer.vocabulary.tokens[i] for i in answer).decode(errors="replace")
    found = re.search(r"<\|python_start\|>([^<]*)(<\|python_end\|>)?$", text)
    return found[1] if found else None


def compare(name: str, runtime: Runtime, expected: list[list[Response]], prompts: list[str], own: Chatmill) -> None:
    """Print a row: on how many prompts ids, template, answers, ends and the answers with calls are chatmill's."""
    found = [chat(runtime, prompt, own) for prompt in prompts]
    stops = own.loaded.stop_ids
    pairs = list(zip(found, expected, strict=True))

    def bare(answer: list[int]) -> list[int]:
        return answer[:-1] if answer and answer[-1] in stops else answer

    def same(one: list[Response], other: list[Response]) -> bool:
        return [bare(part.answer) for part in one] == [bare(part.answer) for part in other]

    ids = sum([part.ids for part in one] == [part.ids for part in other] for one, other in pairs)
    texts = sum([part.prompt for part in one] == [part.prompt for part in other] for one, other in pairs)
    answers = sum(same(one, other) for one, other in pairs)
    ended = sum(all(len(part.answer) < MAX_TOKENS or part.answer[-1] in stops for part in one) for one in found)
    calls = [(one, other) for one, other in pairs if len(other) > 1]
    called = sum(same(one, other) for one, other in calls)
    print(f"| {name} | {ids} | {texts} | {answers} | {ended} | {called} of {len(calls)} |", flush=True)
    for prompt, (one, other) in zip(prompts, pairs, strict=True):
        if not same(one, other):
            print(f"    {prompt!r}: {[part.answer for part in one]}, expected {[part.answer for part in other]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "data", metavar="FOLDER", help="what the pipeline wrote")
    parser.add_argument("--packages", type=Path, metavar="FOLDER", help="a folder with node_modules")
    parser.add_argument("--llama-server", type=Path, metavar="PROGRAM")
    options = parser.parse_args()
    model, onnx = options.data / "model", options.data / "export/onnx"
    gguf = options.data / "export/gguf/model-f32.gguf"
    prompts = PROMPTS.read_text(encoding="utf-8").splitlines()
    own = Chatmill(model)
    expected = [chat(own, prompt, own) for prompt in prompts]
    with ExitStack() as resources:
        makers: dict[str, Callable[[], Runtime] | None] = {
            "chatmill, PyTorch": lambda: own,
            "chatmill, ONNX Runtime": lambda: Chatmill(onnx),
            "chatmill, GGUF": lambda: Chatmill(gguf),
            "transformers": (lambda: Transformers(model)) if find_spec("transformers") else None,
            "ONNX Runtime GenAI": (lambda: GenAI(onnx)) if find_spec("onnxruntime_genai") else None,
            "llama-cpp-python": (lambda: LlamaCpp(gguf)) if find_spec("llama_cpp") else None,
            "llama-server": (
                (lambda: LlamaServer(options.llama_server, gguf, resources)) if options.llama_server else None
            ),
        }
        for name, path in {"node-llama-cpp": gguf, "transformers.js": onnx, "onnxruntime-node": onnx}.items():
            start = partial(Node, name, path, options.packages, resources)
            makers[name] = start if options.packages else None
        print("| of 20 prompts | ids | template | answers | ends | calculator |\n|---|---|---|---|---|---|")
        for name, make in makers.items():
            if make is None:
                print(f"| {name} | not installed, or its place not given | | | | |")
            else:
                compare(name, make(), expected, prompts, own)


if __name__ == "__main__":
    main()
