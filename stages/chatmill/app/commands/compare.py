"""Compare models on the same prompts: answers side by side, and bits per byte of each under the others."""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from chatmill.app.comparison import Bits, Comparison, Given, compare, knows_calls, pooled, speeds
from chatmill.app.experiments import fetched
from chatmill.app.terminal.settings import MOST_THREADS, at_least_one
from chatmill.app.terminal.side_by_side import columns, wrapped
from chatmill.app.terminal.talk import described, notice
from chatmill.app.terminal.token_grid import Line, aligned, write
from chatmill.app.terminal.words import plural
from chatmill.datasets.formats.reading import ROW_BYTES
from chatmill.inference.chat import ChatSession
from chatmill.inference.loading import load
from chatmill.inference.sampler import Sampling
from chatmill.pipeline.errors import sentence
from chatmill.report.metrics import number


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The options of `chatmill compare`."""
    add = command.add_argument
    add("models", nargs="+", metavar="MODEL", help="a model's folder or file; a DVC experiment, branch, tag or commit")
    add("-p", "--prompt", action="append", default=[], metavar="TEXT", help="may be repeated")
    add("--prompt-file", type=Path, metavar="FILE", help="more prompts, one a line")
    add("--system", default="", metavar="TEXT", help="a system prompt")
    add("--max-tokens", type=int, default=256, metavar="N", help="of an answer (default: %(default)s)")
    for field in fields(Sampling):
        option = f"--{field.name.replace('_', '-')}"
        add(option, type=type(field.default), default=field.default, metavar="N", help="as for `chatmill chat`")
    add("--device", default="auto", help="as for `chatmill chat`")
    add("--threads", type=int, metavar="N", help="one less than there are cores if not given")
    add("--json", action="store_true", help="print JSON, for other programs")


def run(options: argparse.Namespace) -> None:
    """Ask all models, and print what comes out: each prompt as soon as it is answered."""
    at_least_one("--max-tokens", options.max_tokens)
    if options.threads is not None:
        at_least_one("--threads", options.threads, MOST_THREADS)
    if not 2 <= len(options.models) <= len(ascii_uppercase):
        raise ValueError(f"{len(options.models)} models: name 2 to {len(ascii_uppercase)} of them")
    prompts = read_prompts(options.prompt, options.prompt_file)
    sessions = open_sessions(options)
    if options.json:
        print(json.dumps(as_json(options.models, sessions, [compare(prompt, sessions) for prompt in prompts])))
        return
    width, done = shutil.get_terminal_size().columns, []
    headings = [f"{letter} {name}" for letter, name in zip(ascii_uppercase, options.models, strict=False)]
    for prompt in prompts:
        done.append(compare(prompt, sessions))
        write([*shown(done[-1], headings, width), []], sys.stdout)
    write(summary(done), sys.stdout)


def read_prompts(given: Sequence[str], file: Path | None) -> list[str]:
    """The prompts on the command line, and those in a file. Raises ValueError where there is none, or an empty one."""
    if not all(map(str.strip, given)):
        raise ValueError("a prompt is empty: give some text after -p")
    lines = read_lines(file) if file else []
    prompts = [*given, *filter(str.strip, lines)]
    if not prompts:
        raise ValueError("no prompts: give one after -p, or a file with one a line after --prompt-file")
    return prompts


def read_lines(file: Path) -> list[str]:
    """The lines of a file of UTF-8. Raises ValueError for what is none, or too long."""
    with file.open("rb") as stream:
        content = stream.read(ROW_BYTES + 1)
    if len(content) > ROW_BYTES:
        raise ValueError(f"{file}: over {ROW_BYTES:,} bytes: shorten it")
    try:
        return content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 at byte {error.start}") from error


def open_sessions(options: argparse.Namespace) -> list[ChatSession]:
    """A chat with each model, which is told on stderr."""
    settings = {"sampling": Sampling(**{field.name: getattr(options, field.name) for field in fields(Sampling)})}
    settings |= {"system": options.system, "max_tokens": options.max_tokens}
    sessions = []
    for letter, name in zip(ascii_uppercase, options.models, strict=False):
        sessions.append(open_named(name, options.device, options.threads, **settings))
        notice(f"{letter} {name}: {described(sessions[-1])}")
    if len({knows_calls(session) for session in sessions}) == 2:
        notice("not all of them know the calculator: its calls are left out of bits per byte")
    return sessions


def open_named(name: str, device: str, threads: int | None, **settings: Any) -> ChatSession:
    """A chat with the model at a path, or of a run that DVC knows; its first tokens, the slow ones, are behind it."""
    with fetched(name) as path:
        try:
            session = ChatSession(*load(path, device, threads), **settings)
            for _ in range(2):
                session.engine.append([0])
        except (ValueError, MemoryError) as error:
            what = sentence(error)
            raise ValueError(what if what.startswith(name) else f"{name}: {what}") from error
    return session


def shown(comparison: Comparison, headings: Sequence[str], width: int) -> Iterator[Line]:
    """A prompt, the answers to it, and the bits per byte of each."""
    yield from ([("bold", line)] for line in wrapped(f"> {comparison.prompt}", width))
    yield from columns(headings, list(map(answer_text, comparison.answers)), width)
    yield []
    yield from bits_table("Bits per byte", comparison.bits_per_byte())
    yield from ([("", line)] for note in notes(comparison) for line in wrapped(note, width))


def answer_text(given: Given) -> str:
    """An answer and what it took, or why there is none."""
    timing = given.timing
    if timing is None:
        return f"No answer: {given.problem}"
    took = f"{plural(timing.tokens, 'token')}, first after {1000 * timing.first_token:.1f} ms"
    rate = f", then {timing.tokens_per_second:,.0f}/s" if timing.tokens > 1 else ""
    return f"{given.message.text or '(no text)'}\n\n[{took}{rate}]"


def notes(comparison: Comparison) -> Iterator[str]:
    """Why an answer has no bits per byte where it has none."""
    for answer, given, row in zip(ascii_uppercase, comparison.answers, comparison.nats, strict=False):
        problems = {model: nats for model, nats in zip(ascii_uppercase, row, strict=False) if isinstance(nats, str)}
        if given.problem:
            continue  # it stands where the answer would
        if len(problems) == len(row) and len({*row}) == 1:
            yield f"– answer of {answer}: {row[0]}"
        else:
            yield from (f"– answer of {answer} under {model}: {problem}" for model, problem in problems.items())


def bits_table(caption: str, bits: Bits) -> Iterator[Line]:
    """A row for each answer, a column for each model it is scored under."""
    letters = ascii_uppercase[: len(bits)]
    rows = [
        (f"answer of {letter}", *(number(one, 3) for one in row)) for letter, row in zip(letters, bits, strict=True)
    ]
    return aligned(caption, ("", *(f"under {letter}" for letter in letters)), rows)


def summary(done: Sequence[Comparison]) -> Iterator[Line]:
    """All prompts together: bits per byte, where there are several, and how fast each model was."""
    if len(done) > 1:
        yield from bits_table(f"Bits per byte, all {len(done)} prompts", pooled(done))
        yield []
    rows = [
        (letter, number(speed.first_token and 1000 * speed.first_token, 1), number(speed.tokens_per_second))
        for letter, speed in zip(ascii_uppercase, speeds(done), strict=False)
    ]
    yield from aligned("Speed", ("", "first token, ms (median)", "tokens/s after it"), rows)


def as_json(names: Sequence[str], sessions: Sequence[ChatSession], done: Sequence[Comparison]) -> dict[str, Any]:
    """All that was found. Matrices have a row for each answer, and in it a number for each model, or null."""
    models = [
        {
            "name": name,
            "engine": session.engine.name,
            "device": session.engine.device,
            "bytes": session.engine.num_bytes,
            "context": session.engine.context,
            "template": session.template.name,
            "tokenizer": session.tokenizer.fingerprint,
        }
        for name, session in zip(names, sessions, strict=True)
    ]
    prompts = [
        {
            "prompt": one.prompt,
            "answers": list(map(answer_json, one.answers)),
            "bits_per_byte": one.bits_per_byte(),
            "notes": list(notes(one)),
        }
        for one in done
    ]
    speed = [one._asdict() for one in speeds(done)]
    return {"models": models, "prompts": prompts, "bits_per_byte": pooled(done), "speed": speed}


def answer_json(given: Given) -> dict[str, Any]:
    """An answer's text and timings, in seconds; null and the problem where there is none."""
    if given.timing is None:
        return {"text": None, "problem": given.problem}
    rate = {"tokens_per_second": given.timing.tokens_per_second}
    return {"text": given.message.text, **given.timing._asdict(), **rate}
