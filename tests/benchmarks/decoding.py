"""The cost of a token outside the engine, the gain of batched chats, and what prompt lookup decoding would save.

    python tests/benchmarks/decoding.py [MODEL ...] [--threads N] [--data NAME=FILE ...]

MODEL is a folder that train_model wrote, or 30M or 100M: an untrained model of that size (default: data/model).
For each engine, and for PyTorch `chats` only:
- `python` is the CPU time of a token outside ONNX Runtime, in microseconds, by the kind of sampling.
- `chats` is the tokens a second of several chats together, as a multiple of those of one.
- `chunks` is the time to read a prompt in chunks of some tokens, as a multiple of reading it at once.
- `ids` is the time of a step that reads some ids and returns the logits after each, as a multiple of one id's.

Prompt lookup decoding finds what followed the last n ids earlier in the conversation, and checks the k ids that
followed in one step; where several n are tried, the longest match counts. NAME is a format that prepare reads, FILE a
dataset in it, whose questions are answered. Both for the answers in FILE and for the model's own, it prints the tokens
of a step and, by `ids`, how many times as fast the answers would be. Repetitions of what is compared alternate; numbers
are medians.
"""

import argparse
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from peer_files import QUANTIZED, SHAPES, write_random_model

import export_onnx
from chatmill.conversation import LossKind, conversation_segments
from chatmill.datasets.formats.example import Reject
from chatmill.datasets.formats.registry import read_dataset
from chatmill.engines import onnx_engine as shared_caches
from chatmill.engines.engine import Engine, default_threads
from chatmill.engines.onnx_engine import SharedCacheEngine
from chatmill.engines.pytorch_engine import PyTorchEngine
from chatmill.inference.chat_session import ChatSession, common_prefix_length
from chatmill.inference.model_loading import ONNX_FILES, LoadedModel, load_model
from chatmill.inference.sampler import IncrementalDetokenizer, Sampler, Sampling, generate
from chatmill.pipeline.progress import progress

CHATS = (1, 2, 4, 8, 16)
IDS = (1, 2, 3, 5, 9)
CHUNKS = (64, 256, 512, 1024)
PAST = 200  # tokens in the cache of what is timed
REPEATS = 15
STREAMED = 200
QUESTIONS = 100
ANSWER = 256  # tokens
GUESSES = [{n: k} for n in (1, 2, 3, 4) for k in (1, 2, 4, 8)]
GUESSES += [{1: 1, 2: 2, 3: 4, 5: 8}, {2: 2, 3: 4, 5: 8}, {1: 2, 2: 3, 3: 5, 5: 8}]  # more after longer matches
SAMPLINGS = {
    "greedy": Sampling(),
    "top_p": Sampling(temperature=0.8, top_p=0.95),
    "top_k": Sampling(temperature=0.8, top_k=40, top_p=0.95),
    "penalty": Sampling(repetition_penalty=1.1),
}

Guesses = dict[int, int]  # the length of a match, and the number of ids to guess after it


class Turn(NamedTuple):
    """An answer to a prompt, and which of its ids the model generates: not those of a tool's output."""

    prompt: list[int]
    answer: list[int]
    generated: list[bool]


def medians(actions: dict[Hashable, Callable[[], Any]], repeats: int = REPEATS) -> dict[Hashable, float]:
    """The median seconds of each action; they alternate, and the first round is discarded."""
    times = {name: [] for name in actions}
    for repetition in progress(range(1 + repeats), "rounds"):
        for name, action in actions.items():
            started = perf_counter()
            action()
            if repetition:
                times[name].append(perf_counter() - started)
    return {name: median(values) for name, values in times.items()}


class Watched:
    """A session of ONNX Runtime that measures the CPU time of our thread in it; waiting does not count."""

    def __init__(self, session: Any) -> None:
        self.session, self.seconds = session, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def run_with_iobinding(self, binding: Any) -> None:
        """Run, and add the time that it took."""
        started = thread_time()
        self.session.run_with_iobinding(binding)
        self.seconds += thread_time() - started


def python_microseconds(loaded: LoadedModel) -> dict[str, float]:
    """CPU time of a token outside ONNX Runtime, by the kind of sampling."""
    engine, tokenizer, shares = loaded.engine, loaded.tokenizer, {name: [] for name in SAMPLINGS}
    prompt = tokenizer.encode("How are you today?")
    allowed = np.arange(engine.vocab_size) < tokenizer.num_text
    watched = engine._session.session = Watched(engine._session.session)
    for repetition in progress(range(1 + REPEATS), "python"):
        for name, sampling in SAMPLINGS.items():
            engine.rewind(0)
            watched.seconds, started = 0.0, thread_time()
            sampler, reply = Sampler(allowed, sampling), IncrementalDetokenizer(tokenizer)
            for token in generate(engine, prompt, sampler=sampler, stop_ids=(), max_tokens=STREAMED):
                reply.push(token)
            if repetition:
                shares[name].append(1e6 * (thread_time() - started - watched.seconds) / STREAMED)
    engine._session.session = watched.session
    return {name: median(values) for name, values in shares.items()}


def chats_gain(engine: SharedCacheEngine | PyTorchEngine) -> dict[int, float]:
    """Tokens a second of several chats, as a multiple of those of one."""
    chats = engine.chat_batch(max(CHATS))
    joined = [chats.join() for _ in range(max(CHATS))]
    for chat in joined:
        chat.append(some_ids(engine, PAST))

    def step(count: int) -> None:
        chats.step([(chat, 1) for chat in joined[:count]])
        for chat in joined[:count]:
            chat.rewind(PAST)

    seconds = medians({count: lambda count=count: step(count) for count in CHATS}, 3 * REPEATS)
    return {count: count * seconds[1] / seconds[count] for count in CHATS}


def chunk_costs(engine: SharedCacheEngine) -> dict[int, float]:
    """Seconds to read a prompt in chunks, as a multiple of those in one."""
    ids = some_ids(engine, engine.context)
    sizes = [size for size in CHUNKS if size < len(ids)] + [len(ids)]

    def read_in(size: int) -> None:
        shared_caches.PREFILL_CHUNK = size
        engine.rewind(0)
        engine.append(ids)

    default = shared_caches.PREFILL_CHUNK
    seconds = medians({size: lambda size=size: read_in(size) for size in sizes}, REPEATS // 3)
    shared_caches.PREFILL_CHUNK = default
    return {size: seconds[size] / seconds[len(ids)] for size in sizes}


def id_costs(engine: SharedCacheEngine) -> dict[int, float]:
    """Seconds of a step with the logits of several ids, as a multiple of those of one."""
    caches, ids = engine._caches, some_ids(engine, PAST + max(IDS))
    caches.read(0, ids[:PAST], 0)
    steps = {count: lambda count=count: caches.run(0, ids[PAST : PAST + count], PAST, keep=count) for count in IDS}
    seconds = medians(steps, 3 * REPEATS)
    return {count: seconds[count] / seconds[1] for count in IDS}


def some_ids(engine: Engine, count: int) -> list[int]:
    """Ids of the vocabulary."""
    return np.random.default_rng(0).integers(0, engine.vocab_size, count).tolist()


def steps(turn: Turn, guesses: Guesses) -> Iterator[tuple[int, int]]:
    """For each step of an answer, the ids that it reads, and the ids of the answer that it yields."""
    ids = turn.prompt + turn.answer
    generated = [False] * len(turn.prompt) + turn.generated
    followers: dict[tuple[int, ...], int] = {}  # the index after the latest match of these ids
    indexed, at = 1, len(turn.prompt)
    while at < len(ids):
        for end in range(indexed, at):
            followers |= {tuple(ids[end - n : end]): end for n in guesses if n <= end}
        indexed = at
        if not generated[at]:
            at += 1
            continue
        places = ((followers.get(tuple(ids[at - n : at])), k) for n, k in sorted(guesses.items(), reverse=True))
        place, k = next(((place, k) for place, k in places if place), (at, 0))
        guessed = ids[place : min(place + k, at)]
        expected = ids[at : at + generated[at:].index(False)] if False in generated[at:] else ids[at:]
        right = common_prefix_length(guessed, expected)
        given = right + (right < len(expected))
        yield 1 + len(guessed), given
        at += given


def guess(turns: Sequence[Turn], guesses: Guesses, costs: dict[int, float]) -> tuple[float, float]:
    """The tokens that a step yields, and how many times as fast the answers are."""
    read = Counter()
    tokens = 0
    for turn in turns:
        for count, given in steps(turn, guesses):
            read[count] += 1
            tokens += given
    cost = sum(times * np.interp(count, list(costs), list(costs.values())) for count, times in read.items())
    return tokens / read.total(), tokens / cost


def dataset_turns(loaded: LoadedModel, conversations: Sequence[Any]) -> Iterator[Turn]:
    """The last answers of the dataset's conversations."""
    for conversation in conversations:
        prompt = loaded.tokenizer.encode_segments(loaded.template.prompt(conversation[:-1]))[0]
        ids, loss = loaded.tokenizer.encode_segments(conversation_segments(conversation))
        generated = [one == LossKind.TRAINED for one in loss[len(prompt) :]]
        end = 1 + max(i for i, one in enumerate(generated) if one)
        yield Turn(prompt, ids[len(prompt) : len(prompt) + end], generated[:end])


def model_turns(loaded: LoadedModel, conversations: Sequence[Any], sampling: Sampling) -> Iterator[Turn]:
    """The model's own answers to the same questions."""
    session = ChatSession(*loaded, sampling=sampling, max_tokens=ANSWER)
    opens, closes = (loaded.tokenizer.special[name] for name in ("<|output_start|>", "<|output_end|>"))
    for conversation in conversations:
        session.clear()
        for _ in session.ask(conversation[0].text):
            pass
        generated, inside = [], False
        for token in session.answer_ids:
            inside = inside or token == opens
            generated.append(not inside)
            inside = inside and token != closes
        yield Turn(session.prompt_ids, session.answer_ids, generated)


def ask(file: Path, name: str, room: int) -> list[Any]:
    """Conversations of a dataset that are not too long, in a fixed random order."""
    items = [item for item in read_dataset(file, name, limit=None, seed=1) if not isinstance(item, Reject)]
    random.Random(0).shuffle(items)
    short = (item.conversation for item in items if sum(len(message.text) for message in item.conversation) < room)
    return [conversation for conversation, _ in zip(short, range(QUESTIONS), strict=False)]


def show_guesses(loaded: LoadedModel, name: str, conversations: Sequence[Any], costs: dict[int, float]) -> None:
    """Print the gain of prompt lookup with the answers of a dataset, and with the model's own."""
    kinds = {"the dataset's": list(dataset_turns(loaded, conversations))}
    for kind in ("greedy", "top_p"):
        kinds[f"its own, {kind}"] = list(progress(model_turns(loaded, conversations, SAMPLINGS[kind]), kind))
    for kind, turns in kinds.items():
        tokens = sum(sum(turn.generated) for turn in turns) / len(turns)
        print(f"  {name}, {kind} answers ({tokens:.0f} tokens each), n: k")
        for guesses in GUESSES:
            tokens, speed = guess(turns, guesses, costs)
            print(f"    {show(guesses, 0)}: {tokens:.2f} tokens a step, {speed:.2f} times as fast")


def show(values: dict[Hashable, float], digits: int = 2) -> str:
    """The values on one line."""
    return ", ".join(f"{name}: {value:.{digits}f}" for name, value in values.items())


def measure(model: str, folder: Path, options: argparse.Namespace) -> None:
    """Print all results of a model."""
    if model in SHAPES:
        write_random_model(model, folder / "model")
    else:
        (folder / "model").symlink_to(Path(model).resolve())
    export_onnx.main(folder / "model", folder / "onnx", quantize=QUANTIZED)
    loaded = load_model(folder / "model", device="cpu", threads=options.threads)
    print(f"{model}, pytorch, {options.threads} threads\n  chats: {show(chats_gain(loaded.engine))}")
    for name, file in ONNX_FILES.items():
        if name == "onnx_hf":
            continue
        loaded = load_model(folder / "onnx" / file, threads=options.threads)
        print(f"{model}, {name}, {options.threads} threads")
        print("  python:", show(python_microseconds(loaded), 0))
        print("  chats:", show(chats_gain(loaded.engine)))
        print("  chunks:", show(chunk_costs(loaded.engine)))
        print("  ids:", show(costs := id_costs(loaded.engine)), flush=True)
        for source, _, path in (argument.partition("=") for argument in options.data):
            if model not in SHAPES:
                show_guesses(loaded, source, ask(Path(path), source, loaded.engine.context), costs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=["data/model"], metavar="MODEL")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--data", nargs="*", default=[], metavar="NAME=FILE")
    options = parser.parse_args()
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            measure(model, Path(folder), options)


if __name__ == "__main__":
    main()
