"""Engines and their peers, each in a process of its own that is stopped while another is measured.

    python tests/benchmarks/peers.py ENGINE FOLDER THREADS

reads questions {"prompt": [ids], "new_tokens": N} and writes answers {"ids": [...], "ms": [...]}, one a line. FOLDER is
what peer_files.write_all wrote. Every engine decodes greedily with a cache; the threads of ours spin as in a chat,
those of the peers wait as by default.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, Protocol
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from peer_files import read_config

from chatmill.engines.engine import ONNX_FILES, Engine
from chatmill.engines.onnx_engine import SPIN_OPTIONS, Session, SharedCaches
from chatmill.inference.model_loading import load_engine
from chatmill.pipeline.processes import die_with_parent

OURS = ("pytorch", *ONNX_FILES)
WAITING = ("onnx_spinning", "onnx_blocking")  # the engine `onnx` whose threads wait in other ways
LIBRARIES = {  # the libraries of peers, and those that write their files
    "transformers": ["transformers"],
    "genai": ["onnxruntime_genai"],
    "ctranslate2": ["ctranslate2", "transformers"],
    "llama_f32": ["llama_cpp"],
    "llama_q8_0": ["llama_cpp"],
    "llama_q4_0": ["llama_cpp"],
}


class Answer(NamedTuple):
    """The ids that follow a prompt, and the milliseconds to each of them."""

    ids: list[int]
    ms: list[float]


class Answering(Protocol):
    """An open engine or peer."""

    def answer(self, prompt: list[int], new_tokens: int) -> Answer:
        """Generate the first token and `new_tokens` more."""


def answer_by_steps(step: Callable[[list[int]], int], prompt: list[int], new_tokens: int) -> Answer:
    """The answer of an engine, by a step that returns one token after reading the unread ids."""
    ids, times, unread = [], [], prompt
    for _ in range(1 + new_tokens):
        started = perf_counter()
        unread = [step(unread)]
        times.append(1e3 * (perf_counter() - started))
        ids += unread
    return Answer(ids, times)


class Ours:
    """One of our engines."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def answer(self, prompt: list[int], new_tokens: int) -> Answer:
        self.engine.rewind(0)
        return answer_by_steps(lambda ids: int(self.engine.append(ids).argmax()), prompt, new_tokens)


def waiting_session(file: Path, threads: int, *, spinning: bool) -> Session:
    """A session whose idle threads always spin, or always block."""
    with patch.dict(SPIN_OPTIONS, {"allow_spinning": str(int(spinning))}, clear=True):
        return Session(file, threads=threads)


class Transformers:
    """transformers' generate."""

    def __init__(self, folder: Path, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig

        torch.set_num_threads(threads)
        self.torch, self.model = torch, AutoModelForCausalLM.from_pretrained(folder / "model")
        self.model.generation_config = GenerationConfig(do_sample=False)

    def answer(self, prompt: list[int], new_tokens: int) -> Answer:
        stream = Stream()
        ids = self.torch.tensor([prompt])
        mask = self.torch.ones_like(ids)
        self.model.generate(ids, attention_mask=mask, max_new_tokens=1 + new_tokens, streamer=stream)
        return Answer(stream.ids, stream.ms)


class Stream:
    """A streamer that receives the tokens of generate, after those of the prompt."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.ms: list[float] = []
        self.before = perf_counter()
        self.is_prompt = True

    def put(self, ids: Sequence[int]) -> None:
        if self.is_prompt:
            self.is_prompt = False
            return
        now = perf_counter()
        self.ms.append(1e3 * (now - self.before))
        self.ids += [int(i) for i in ids]
        self.before = now

    def end(self) -> None:
        """Do nothing: no token is pending."""


class GenAI:
    """ONNX Runtime GenAI, with its cache in one buffer."""

    def __init__(self, folder: Path, threads: int) -> None:
        import onnxruntime_genai

        self.library, config = onnxruntime_genai, onnxruntime_genai.Config(str(folder / "onnx"))
        last = read_config(folder / "model")["vocab_size"] - 1  # an unused id, so that nothing ends the text
        config.overlay(json.dumps({"model": {"eos_token_id": last, "pad_token_id": 0}}))
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
        self.model = onnxruntime_genai.Model(config)

    def answer(self, prompt: list[int], new_tokens: int) -> Answer:
        settings = self.library.GeneratorParams(self.model)
        settings.set_search_options(do_sample=False)
        generator = self.library.Generator(self.model, settings)

        def step(unread: list[int]) -> int:
            if unread is prompt:
                generator.append_tokens(prompt)
            generator.generate_next_token()
            return int(generator.get_next_tokens()[0])

        return answer_by_steps(step, prompt, new_tokens)


class CTranslate2:
    """CTranslate2 in float32; it takes tokens by name."""

    def __init__(self, folder: Path, threads: int) -> None:
        import ctranslate2

        self.names = json.loads((folder / "ctranslate2" / "vocabulary.json").read_text(encoding="utf-8"))
        self.generator = ctranslate2.Generator(
            str(folder / "ctranslate2"), intra_threads=threads, compute_type="float32"
        )

    def answer(self, prompt: list[int], new_tokens: int) -> Answer:
        tokens, options = [self.names[i] for i in prompt], {"sampling_topk": 1, "end_token": []}
        before, ids, times = perf_counter(), [], []
        for step in self.generator.generate_tokens(tokens, max_length=1 + new_tokens, **options):
            now = perf_counter()
            times.append(1e3 * (now - before))
            ids.append(step.token_id)
            before = now
        return Answer(ids, times)


class LlamaCpp:
    """llama.cpp, called as its own programs do."""

    def __init__(self, file: Path, threads: int, context: int) -> None:
        import llama_cpp

        self.library = llama_cpp
        self.opened = llama_cpp.Llama(
            str(file),
            n_ctx=context,
            n_batch=2048,
            n_ubatch=512,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )
        self.context, self.vocab_size = self.opened.ctx, self.opened.n_vocab()

    def answer(self, prompt: list[int], new_tokens: int) -> Answer:
        self.library.llama_memory_clear(self.library.llama_get_memory(self.context), True)
        return answer_by_steps(self.step, prompt, new_tokens)

    def step(self, unread: list[int]) -> int:
        ids = (ctypes.c_int32 * len(unread))(*unread)
        failed = self.library.llama_decode(self.context, self.library.llama_batch_get_one(ids, len(unread)))
        assert not failed, f"llama_decode: {failed}"
        logits = self.library.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(logits, (self.vocab_size,)).argmax())


def names() -> list[str]:
    """Our engines, and the peers that are installed."""
    return [*OURS, *(name for name, libraries in LIBRARIES.items() if all(map(find_spec, libraries)))]


def open_by_name(name: str, folder: Path, threads: int) -> Answering:
    """Open an engine or a peer on the files of a folder."""
    if name == "transformers":
        return Transformers(folder, threads)
    if name == "genai":
        return GenAI(folder, threads)
    if name == "ctranslate2":
        return CTranslate2(folder, threads)
    if name in LIBRARIES:
        context = read_config(folder / "model")["max_position_embeddings"]
        return LlamaCpp(folder / "gguf" / f"model-{name.removeprefix('llama_')}.gguf", threads, context)
    if name in WAITING:
        session = waiting_session(folder / "onnx" / ONNX_FILES["onnx"], threads, spinning=name == "onnx_spinning")
        return Ours(Engine(SharedCaches(session), "onnx", fingerprint="", template=""))
    return Ours(load_engine(folder / ("model" if name == "pytorch" else "onnx"), name, device="cpu", threads=threads))


class Worker:
    """An engine in a process of its own, which runs only while it answers."""

    def __init__(self, name: str, folder: Path, threads: int) -> None:
        self.name = name
        command = [sys.executable, __file__, name, str(folder), str(threads)]
        settings = {"OMP_NUM_THREADS": str(threads)} | ({"OMP_WAIT_POLICY": "passive"} if name in OURS else {})
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=os.environ | settings, text=True, **pipes)
        self._read()  # waits until it is open
        self._halt()

    def answer(self, prompt: list[int], new_tokens: int) -> Answer:
        """The engine's answer. Raises RuntimeError where its process ended."""
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(json.dumps({"prompt": prompt, "new_tokens": new_tokens}) + "\n")
        self.process.stdin.flush()
        answer = Answer(**json.loads(self._read()))
        self._halt()
        return answer

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()

    def _halt(self) -> None:
        """Stop the process with all its threads."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)

    def _read(self) -> str:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}: its process ended with {self.process.wait()}")
        return line


def main(name: str, folder: str, threads: str) -> None:
    """Answer until there are no more questions."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stderr, not among the answers
    opened = open_by_name(name, Path(folder), int(threads))
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        answer = opened.answer(**json.loads(line))
        print(json.dumps(answer._asdict()), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
