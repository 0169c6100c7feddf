"""The cost of the server over the bare engine: to the first byte, for each token, and with several chats at once.

    python tests/benchmarks/serving.py MODEL [--streams 1 8] [--threads N]

MODEL is a folder that `chatmill serve --model` takes. The same prompts are continued by the engine itself, with the
generation loop and the sampler of a chat, and by a server that a client asks over loopback (/v1/completions, by ids):
in turn, round after round, each in a process of its own. So that answers are long, prompts repeat two random ids, and
those are used whose greedy answer has all `--tokens`. The client reads sockets, and records when the first bytes of an
answer's first event arrive. Cells are medians over the rounds, with the least and the largest in parentheses; ratios
are taken within a round.
"""

import argparse
import json
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmark import processor
from chatmill.engines.engine import default_threads
from chatmill.inference.chat_session import PromptBuilder
from chatmill.inference.model_loading import find_model, load_model
from chatmill.inference.sampler import Sampler, Sampling, generate
from chatmill.pipeline.progress import progress
from support.serving import serving

FIRST_BYTE, EXTRA_MS, ONE_STREAM, EIGHT_STREAMS = 1.10, 5.0, 0.95, 3.0  # the targets


class Times(NamedTuple):
    """The seconds of an answer: until its first token or byte, and from there to its end."""

    first: float
    rest: float
    tokens: int

    @property
    def rate(self) -> float:
        """Tokens per second after the first."""
        return (self.tokens - 1) / self.rest


def engine_worker(pipe: Connection, model: str, threads: int) -> None:
    """Send the model's text ids; then continue each received prompt by the engine alone."""
    loaded = load_model(Path(model), "cpu", threads)
    builder = PromptBuilder(*loaded)
    settings = {"sampler": Sampler(builder.allowed, Sampling()), "stop_ids": builder.stop_ids}
    pipe.send(np.flatnonzero(loaded.tokenizer.is_text))
    while request := pipe.recv():
        prompt, tokens = request
        loaded.engine.rewind(0)
        started, times = perf_counter(), []
        for _ in generate(loaded.engine, prompt, max_tokens=tokens, tool=builder.tool, **settings):
            times.append(perf_counter())
        pipe.send(Times(times[0] - started, times[-1] - times[0], len(times)))


def client_worker(pipe: Connection, port: int) -> None:
    """Have the server continue the received prompts together, each on a connection of its own."""
    lines: list[socket.socket] = []
    while request := pipe.recv():
        prompts, tokens = request
        while len(lines) < len(prompts):
            lines.append(socket.create_connection(("127.0.0.1", port)))
        with ThreadPoolExecutor(len(prompts)) as pool:
            answers = list(pool.map(partial(stream, port, tokens), lines, prompts))
            pipe.send((answers, max(answer.first + answer.rest for answer in answers)))


def stream(port: int, tokens: int, line: socket.socket, prompt: list[int]) -> Times:
    """Continue one prompt."""
    request = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "return_token_ids": True}
    body = json.dumps(request).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}\r\n\r\n"
    started, read, first = perf_counter(), b"", 0.0
    line.sendall(head.encode() + body)
    while not read.endswith(b"0\r\n\r\n"):
        if not (new := line.recv(1 << 16)):
            raise ConnectionError(f"the server closed the connection: {read[-300:]!r}")
        read += new
        if not first and b"\r\n\r\n" in read and b"data: " in read:
            first = perf_counter()
    ended = perf_counter()
    events = [json.loads(part[6:]) for part in read.decode().split("\n") if part.startswith("data: {")]
    if not read.startswith(b"HTTP/1.1 200"):
        raise ConnectionError(read.decode())
    return Times(first - started, ended - first, events[-1]["timings"]["completion_tokens"])


class Worker:
    """A process that measures each request."""

    def __init__(self, target: object, *arguments: object) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send(())  # ends its loop
        self._process.join()

    def ask(self, *request: object) -> Any:
        """The result of a request."""
        self._pipe.send(request)
        return self._pipe.recv()

    def hear(self) -> Any:
        """What it sends without a request."""
        return self._pipe.recv()


def span(values: Sequence[float], digits: int = 2) -> str:
    """The median, the least and the largest."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def row(*cells: object) -> str:
    """A row of a table in Markdown."""
    return f"| {' | '.join(map(str, cells))} |"


def long_prompts(engine: Worker, options: argparse.Namespace) -> Iterator[list[int]]:
    """Prompts whose answers are long, one after another."""
    text, random = engine.hear(), np.random.default_rng(0)
    for _ in range(100_000):
        prompt = (random.choice(text, 2).tolist() * options.prompt)[: options.prompt]
        if engine.ask(prompt, options.tokens).tokens == options.tokens:
            yield prompt
    raise ValueError(f"{options.model}: too few answers have {options.tokens} tokens: lower --tokens")


def measure(options: argparse.Namespace) -> None:
    """Print the table of one model."""
    most, alone, one, many = max(options.streams), [], [], {count: [] for count in options.streams}
    with Worker(engine_worker, options.model, options.threads) as engine:
        prompts = long_prompts(engine, options)
        rounds = [list(islice(prompts, 1 + most)) for _ in progress(range(1 + options.rounds), "prompts")]
        arguments = ["--model", options.model, "--device", "cpu", "--threads", options.threads, "--parallel", most]
        with serving(*arguments) as address, Worker(client_worker, int(address.rpartition(":")[2])) as client:
            for number, (first, *others) in enumerate(progress(rounds, "rounds")):
                bare = engine.ask(first, options.tokens)
                (served,), _ = client.ask([first], options.tokens)
                found = {count: client.ask(others[:count], options.tokens) for count in options.streams}
                if number:  # the first round is discarded
                    alone.append(bare)
                    one.append(served)
                    for count, (answers, seconds) in found.items():
                        many[count].append(sum(answer.tokens for answer in answers) / seconds)
    show(alone, one, many)


def show(alone: list[Times], one: list[Times], many: dict[int, list[float]]) -> None:
    """Print the measured values and the targets."""
    print(row("", "engine", "server", "ratio", "target"))
    print(f"|{'---|' * 5}")
    allowed = [FIRST_BYTE * bare.first * 1000 + EXTRA_MS for bare in alone]
    ratios = [served.first * 1000 / most for served, most in zip(one, allowed, strict=True)]
    first = [span([1000 * times.first for times in found]) for found in (alone, one)]
    print(row("first token or byte, ms", *first, f"{span(ratios)} of 1.10 times + 5 ms", "at most 1"))
    rates = [served.rate / bare.rate for served, bare in zip(one, alone, strict=True)]
    each = [span([times.rate for times in found], 0) for found in (alone, one)]
    print(row("tokens/s of one stream", *each, span(rates), f"at least {ONE_STREAM}"))
    least = min(many)
    for count, found in many.items():
        ratios = [rate / base for rate, base in zip(found, many[least], strict=True)]
        target = f"at least {EIGHT_STREAMS} on 4 cores" if count == 8 and least == 1 else "–"
        print(row(f"tokens/s of {count} streams", "–", span(found, 0), span(ratios), target))
    lengths = [span([times.tokens for times in found], 0) for found in (alone, one)]
    print(f"\ntokens of an answer: {lengths[0]} of the engine, {lengths[1]} of the server")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", metavar="MODEL", help="a folder that `chatmill serve --model` takes")
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 8], help="at once")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=256, help="of an answer, at most")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print(f"{processor()}, {cores} cores, {options.threads} threads, load {os.getloadavg()[0]:.1f}\n")
    try:
        find_model(Path(options.model))
        measure(options)
    except (ValueError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
