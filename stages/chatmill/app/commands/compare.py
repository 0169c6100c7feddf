"""Compares models: their answers to the same prompts side by side, or by a verdict on the same data.

The measure is bits per byte of the answer's text: its nats under a model, after the same prompt, in that model's own
template and tokens, divided by ln 2 and by the UTF-8 bytes of the text. What a template adds to a text (escapes, or a
space before it) adds nats but no bytes. As in the pipeline's metrics, control tokens and outputs of the calculator are
in neither sum; a call of the calculator is scored as text.
"""

import argparse
import json
import shutil
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple

from chatmill.app import arguments
from chatmill.app.arguments import PROMPT_FILE_HELP, check_positive, join_prompt, read_text
from chatmill.app.measurement import ScoredDocument, measure
from chatmill.app.named_models import load_named, named_errors
from chatmill.app.runs import add_seeds
from chatmill.app.terminal.terminal_chat import describe_session, device_name
from chatmill.app.terminal.text import StyledLine, aligned, columns, notify, plural, print_lines, wrap_text
from chatmill.app.verdict import LIMIT, Run, judge, measure_runs, verdict_lines, verdict_page
from chatmill.conversation import Message
from chatmill.datasets.formats.registry import FORMAT_NAMES
from chatmill.evaluation.bits_per_byte import bits_per_byte
from chatmill.inference.chat_session import AnswerStats, ChatSession
from chatmill.inference.model_loading import LoadedModel
from chatmill.pipeline.processes import USER_ERRORS, error_line
from chatmill.report.markup import number

BitsMatrix = list[list[float | None]]  # bits per byte of the answer of each model (rows) under each (columns)


class ModelAnswer(NamedTuple):
    message: Message = Message("assistant", ())
    stats: AnswerStats | None = None
    error: str = ""


class Comparison(NamedTuple):
    """The answers to a prompt, and the bits per byte of each (rows) under each model (columns), or why not."""

    prompt: str
    answers: list[ModelAnswer]
    bits: list[list[float | str | None]]

    def bits_per_byte(self) -> BitsMatrix:
        """Bits per byte of each answer under each model; None where there is no number."""
        return [[None if isinstance(bits, str) else bits for bits in row] for row in self.bits]

    def notes(self) -> list[str]:
        """Which answers could not be scored under which models, and why."""
        return [
            f"– answer of {letter} under {model}: {problem}"
            for letter, answer, row in zip(ascii_uppercase, self.answers, self.bits, strict=False)
            for model, problem in zip(ascii_uppercase, row, strict=False)
            if isinstance(problem, str) and not answer.error  # which is shown in the answer's place
        ]


def compare_answers(prompt: str, sessions: Sequence[ChatSession]) -> Comparison:
    """Generate an answer with every model, and score every answer under every model."""
    answers = [generate_answer(session, prompt) for session in sessions]
    bits = [
        [(one.error and "no answer") or answer_bits(session, prompt, one.message) for session in sessions]
        for one in answers
    ]
    return Comparison(prompt, answers, bits)


def generate_answer(session: ChatSession, prompt: str) -> ModelAnswer:
    session.clear()
    session.engine.rewind(0)
    session.sampling = session.sampling  # restarts the random numbers from the seed
    try:
        deque(session.ask(prompt), maxlen=0)
    except USER_ERRORS as error:
        return ModelAnswer(error=error_line(error))
    return ModelAnswer(session.conversation[-1], session.answer_stats)


def answer_bits(session: ChatSession, prompt: str, message: Message) -> float | str | None:
    """The bits per byte of an answer's text and calls after a prompt, or why there are none."""
    system = [Message.from_text("system", session.system)] if session.system else []
    conversation = [*system, Message.from_text("user", prompt), message]
    loaded = LoadedModel(session.engine, session.tokenizer, session.template, frozenset())
    try:
        nats, _ = measure(loaded, [ScoredDocument(Path(), "answer", conversation)]).sums["assistant"]
    except USER_ERRORS as error:
        return error_line(error)
    num_bytes = sum(len(part.text.encode()) for part in message.parts if part.kind != "output")
    return bits_per_byte(float(nats.sum()), num_bytes)


# Compare models: their answers to the same prompts side by side, or by a verdict on the same data.

DATA_OPTIONS = ("format", "limit", "html", "seeds")


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    model = "folder or file; or DVC experiment, branch, tag or commit; with --data also A1,A2 that differ by their seed"
    add("models", nargs="+", metavar="MODEL", help=model)
    data = "conversations or texts, on which a verdict is given: which model needs fewer bits, and answers better"
    add("--data", type=Path, metavar="FILE", help=data)
    add("--format", choices=FORMAT_NAMES, metavar="NAME", help="of --data, as for `chatmill evaluate`")
    add("--limit", type=int, metavar="N", help=f"read at most N conversations of --data (default: {LIMIT:,})")
    seeds = "compare each MODEL with all runs that differ from it by their seed alone, as one side"
    add("--seeds", action="store_true", default=None, help=seeds)
    add("--html", type=Path, metavar="FILE", help="also write the verdict as a page")
    arguments.add_repeated(add, "-p", "--prompt", metavar="TEXT", help="prompt")
    add("--prompt-file", metavar="FILE", help=PROMPT_FILE_HELP)
    add("--prompt-list", metavar="FILE", help="a file with more prompts, one a line; - is stdin")
    add("--system", default="", metavar="TEXT", help="system prompt (default: none)")
    arguments.add_answers(add)
    arguments.add_seed(add)
    arguments.add_device(add)
    add("--json", action="store_true", help="print JSON instead of tables")


def run(options: argparse.Namespace) -> None:
    arguments.check_answers(options)
    if not 2 <= len(options.models) <= len(ascii_uppercase):
        raise ValueError(f"expected 2 to {len(ascii_uppercase)} models, got {len(options.models)}")
    if options.data:
        run_on_data(options)
        return
    if given := [name for name in DATA_OPTIONS if getattr(options, name) is not None]:
        raise ValueError(f"--{given[0]}: expected --data FILE as well")
    prompts = read_prompts(options)
    sessions = open_sessions(options)
    comparisons = []
    for prompt in prompts:
        comparisons.append(compare_answers(prompt, sessions))
        if not options.json:
            print_lines(comparison_lines(comparisons[-1], options.models), sys.stdout)
    if options.json:
        print(json.dumps(as_json(options.models, sessions, comparisons)))


def run_on_data(options: argparse.Namespace) -> None:
    if options.prompt or options.prompt_file or options.prompt_list:
        raise ValueError("expected either --data, or prompts")
    limit = LIMIT if options.limit is None else check_positive("--limit", options.limit)
    file = options.html
    if file and (file.is_dir() or not file.absolute().parent.is_dir()):  # known before the models are measured
        raise ValueError(f"--html: expected a file in a folder that exists, got {file}")
    sides = [[name] if Path(name).exists() else list(map(str.strip, name.split(","))) for name in options.models]
    if not all(chain(*sides)):
        raise ValueError(f"{' '.join(options.models)}: expected names of runs with commas between")
    if options.seeds:
        sides = add_seeds(sides, Path.cwd())
        for name, side in zip(options.models, sides, strict=True):
            notify(f"{name}: {plural(len(side), 'seed')}: {', '.join(side)}")
    runs = dict[str, Run]()
    for one in measure_runs([*chain(*sides)], options.data, options.format, limit, options.device, options.threads):
        runs[one.name] = one
        engine = one.loaded.engine
        counts = f"{plural(len(one.text.documents), 'document')} and {plural(len(one.correct), 'exercise')}"
        notify(f"{one.name}: {engine.name} on {device_name(engine)}: {counts}")
    verdict = judge([[runs[name] for name in side] for side in sides])
    if file:
        file.write_text(verdict_page(verdict), encoding="utf-8")
    if options.json:
        print(json.dumps(verdict))
    else:
        print_lines(verdict_lines(verdict, shutil.get_terminal_size().columns), sys.stdout)


def read_prompts(options: argparse.Namespace) -> list[str]:
    """The prompts of the options and their files. Raises ValueError where there is none, or an empty one."""
    listed = read_text(options.prompt_list).replace("\r\n", "\n").split("\n") if options.prompt_list else []
    given: list[str | None] = [*options.prompt, *filter(str.strip, listed)]
    if not given and options.prompt_file is None:
        raise ValueError("no prompts: pass one after -p or in --prompt-file, or one a line in --prompt-list")
    text = None if options.prompt_file is None else read_text(options.prompt_file)
    prompts = [join_prompt(prompt, text) for prompt in given or [None]]
    if not all(map(str.strip, prompts)):
        raise ValueError("a prompt is empty: pass some text after -p or in --prompt-file")
    return prompts


def open_sessions(options: argparse.Namespace) -> list[ChatSession]:
    settings = {"sampling": arguments.sampling(options), "system": options.system, "max_tokens": options.max_tokens}
    sessions = []
    for letter, name in zip(ascii_uppercase, options.models, strict=False):
        loaded = load_named(name, options.device, options.threads)
        with named_errors(name):
            sessions.append(ChatSession(*loaded, **settings))
            for _ in range(2):  # the first tokens are slow
                loaded.engine.append([0])
        notify(f"{letter} {name}: {describe_session(sessions[-1])}")
    return sessions


def comparison_lines(comparison: Comparison, names: Sequence[str]) -> Iterator[StyledLine]:
    width = shutil.get_terminal_size().columns
    headings = [f"{letter} {name}" for letter, name in zip(ascii_uppercase, names, strict=False)]
    yield from ([("bold", line)] for line in wrap_text(f"> {comparison.prompt}", width))
    yield from columns(headings, list(map(format_answer, comparison.answers)), width)
    yield []
    letters = ascii_uppercase[: len(names)]
    table = zip(letters, comparison.bits_per_byte(), strict=True)
    rows = [(f"answer of {letter}", *(number(bits, 3) for bits in row)) for letter, row in table]
    yield from aligned("Bits per byte", ("", *(f"under {letter}" for letter in letters)), rows)
    yield from ([("", line)] for note in comparison.notes() for line in wrap_text(note, width))
    yield []


def format_answer(answer: ModelAnswer) -> str:
    stats = answer.stats
    if stats is None:
        return f"No answer: {answer.error}"
    first = f"{plural(stats.tokens, 'token')}, first after {1000 * stats.first_token:.1f} ms"
    rate = f", then {stats.tokens_per_second:,.0f}/s" if stats.tokens > 1 else ""
    return f"{answer.message.text or '(no text)'}\n\n[{first}{rate}]"


def as_json(names: Sequence[str], sessions: Sequence[ChatSession], comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """All results as JSON. Matrices have a row for each answer, with a number or null for each model."""
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

    def answer_json(answer: ModelAnswer) -> dict[str, Any]:
        if answer.stats is None:
            return {"text": None, "problem": answer.error}
        rate = {"tokens_per_second": answer.stats.tokens_per_second}
        return {"text": answer.message.text, **answer.stats._asdict(), **rate}

    prompts = [
        {
            "prompt": one.prompt,
            "answers": list(map(answer_json, one.answers)),
            "bits_per_byte": one.bits_per_byte(),
            "notes": one.notes(),
        }
        for one in comparisons
    ]
    return {"models": models, "prompts": prompts}
