"""Compare models: their answers to the same prompts side by side, or by a verdict on the same data."""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from chatmill.app.comparison import (
    BitsMatrix,
    Comparison,
    ModelAnswer,
    compare_answers,
    pooled_bits_per_byte,
    speeds,
    supports_tools,
)
from chatmill.app.named_models import load_named, named_errors
from chatmill.app.prompt_files import PROMPT_FILE_HELP, join_prompt, read_text
from chatmill.app.terminal.formatting import plural
from chatmill.app.terminal.settings import MAX_THREADS, check_positive
from chatmill.app.terminal.side_by_side import columns, wrap_text
from chatmill.app.terminal.terminal_chat import describe_session, device_name, notify
from chatmill.app.terminal.token_grid import StyledLine, aligned, print_lines
from chatmill.app.verdict import views
from chatmill.app.verdict.compared_runs import Run
from chatmill.app.verdict.comparing import LIMIT, compare_sides, runs_of
from chatmill.app.verdict.seeds import add_seeds
from chatmill.datasets.formats.registry import FORMAT_NAMES
from chatmill.encoded.token_files import read_meta
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.sampler import Sampling
from chatmill.report.metrics import number

DATA_OPTIONS = ("format", "limit", "tokens", "html", "markdown", "seeds")
MIN_LISTED, MAX_LISTED = 3, 300  # lines of a file of prompts, and the characters of each


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The options of `chatmill compare`."""
    add = command.add_argument
    model = "folder or file; or DVC experiment, branch, tag or commit; with --data also A1,A2 that differ by their seed"
    add("models", nargs="+", metavar="MODEL", help=model)
    data = "conversations or texts, on which a verdict is given: which model needs fewer bits, and answers better"
    add("--data", type=Path, metavar="FILE", help=data)
    add("--format", choices=FORMAT_NAMES, metavar="NAME", help="of --data, as for `chatmill evaluate`")
    add("--limit", type=int, metavar="N", help=f"read at most N conversations of --data (default: {LIMIT:,})")
    add("--tokens", type=Path, metavar="FOLDER", help="encoded training text of the first model, for its n-grams")
    seeds = "compare each MODEL with all runs that differ from it by their seed alone, as one side"
    add("--seeds", action="store_true", default=None, help=seeds)
    add("--html", type=Path, metavar="FILE", help="also write the verdict as a page")
    add("--markdown", type=Path, metavar="FILE", help="also write the verdict as Markdown")
    add("-p", "--prompt", action="append", default=[], metavar="TEXT", help="prompt; may be repeated")
    add("--prompt-file", metavar="FILE", help=PROMPT_FILE_HELP)
    add("--prompt-list", metavar="FILE", help="a file with more prompts, one a line; - is stdin")
    add("--system", default="", metavar="TEXT", help="system prompt (default: none)")
    add("--max-tokens", type=int, default=256, metavar="N", help="as for `chatmill chat`")
    for field in fields(Sampling):
        option = f"--{field.name.replace('_', '-')}"
        add(option, type=type(field.default), default=field.default, metavar="N", help="as for `chatmill chat`")
    add("--device", default="auto", help="as for `chatmill chat`")
    add("--threads", type=int, metavar="N", help="as for `chatmill chat`")
    add("--json", action="store_true", help="print JSON instead of tables")


def run(options: argparse.Namespace) -> None:
    """Compare the models, and print each prompt's answers as soon as they are there."""
    check_positive("--max-tokens", options.max_tokens)
    if options.threads is not None:
        check_positive("--threads", options.threads, MAX_THREADS)
    if not 2 <= len(options.models) <= len(ascii_uppercase):
        raise ValueError(f"expected 2 to {len(ascii_uppercase)} models, got {len(options.models)}")
    if options.data:
        run_on_data(options)
        return
    if given := [name for name in DATA_OPTIONS if getattr(options, name) is not None]:
        raise ValueError(f"--{given[0]}: expected --data FILE as well")
    prompts = read_prompts(options)
    sessions = open_sessions(options)
    if options.json:
        print(json.dumps(as_json(options.models, sessions, [compare_answers(prompt, sessions) for prompt in prompts])))
        return
    width, comparisons = shutil.get_terminal_size().columns, []
    headings = [f"{letter} {name}" for letter, name in zip(ascii_uppercase, options.models, strict=False)]
    for prompt in prompts:
        comparisons.append(compare_answers(prompt, sessions))
        print_lines([*comparison_lines(comparisons[-1], headings, width), []], sys.stdout)
    print_lines(summary(comparisons), sys.stdout)


def run_on_data(options: argparse.Namespace) -> None:
    """Compare the models on data, and print the verdict."""
    if options.prompt or options.prompt_file or options.prompt_list:
        raise ValueError("expected either --data, or prompts")
    if options.limit is not None:
        check_positive("--limit", options.limit)
    for option, file in (("--html", options.html), ("--markdown", options.markdown)):
        if file and (file.is_dir() or not file.absolute().parent.is_dir()):  # known before the models are measured
            raise ValueError(f"{option}: expected a file in a folder that exists, got {file}")
    if options.tokens:
        read_meta(options.tokens)
    sides = list(map(runs_of, options.models))
    if options.seeds:
        sides = add_seeds(sides, Path.cwd())
        for name, side in zip(options.models, sides, strict=True):
            notify(f"{name}: {plural(len(side), 'seed')}: {', '.join(side)}")
    verdict = compare_sides(
        sides,
        options.data,
        format=options.format,
        limit=options.limit,
        tokens=options.tokens,
        device=options.device,
        threads=options.threads,
        measured=notify_of_run,
    )
    for file, write in ((options.html, views.page), (options.markdown, views.markdown)):
        if file:
            file.write_text(write(verdict), encoding="utf-8")
    if options.json:
        print(json.dumps(views.as_json(verdict)))
    else:
        print_lines(views.terminal_lines(verdict, shutil.get_terminal_size().columns), sys.stdout)


def notify_of_run(run: Run) -> None:
    """Print on stderr how a model was measured."""
    engine = run.loaded.engine
    documents = len(run.text.sums["all"][0])
    counts = f"{plural(documents, 'document')}, {plural(len(run.correct), 'exercise')}, {len(run.hits)} rankings"
    notify(f"{run.name}: {engine.name} on {device_name(engine)}: {counts}")


def read_prompts(options: argparse.Namespace) -> list[str]:
    """The prompts of the options and their files. Raises ValueError where there is none, or an empty one."""
    listed = read_text(options.prompt_list).splitlines() if options.prompt_list else []
    given: list[str | None] = [*options.prompt, *filter(str.strip, listed)]
    if not given and options.prompt_file is None:
        raise ValueError("no prompts: pass one after -p or in --prompt-file, or one a line in --prompt-list")
    text = None if options.prompt_file is None else read_text(options.prompt_file)
    if text is not None and not given and looks_listed(text):
        notify(f"{options.prompt_file} is one prompt; --prompt-list {options.prompt_file} has one on each line")
    prompts = [join_prompt(prompt, text) for prompt in given or [None]]
    if not all(map(str.strip, prompts)):
        raise ValueError("a prompt is empty: pass some text after -p or in --prompt-file")
    return prompts


def looks_listed(text: str) -> bool:
    """Whether each line of a text could be a prompt: several short lines, none of them empty, that end as sentences."""
    lines = text.strip("\n").split("\n")
    return len(lines) >= MIN_LISTED and all(
        len(line) <= MAX_LISTED and line.rstrip().endswith(tuple(".?!")) for line in lines
    )


def open_sessions(options: argparse.Namespace) -> list[ChatSession]:
    """A session with each model, which is reported on stderr."""
    settings = {"sampling": Sampling(**{field.name: getattr(options, field.name) for field in fields(Sampling)})}
    settings |= {"system": options.system, "max_tokens": options.max_tokens}
    sessions = []
    for letter, name in zip(ascii_uppercase, options.models, strict=False):
        sessions.append(open_model(name, options.device, options.threads, **settings))
        notify(f"{letter} {name}: {describe_session(sessions[-1])}")
    if len({supports_tools(session) for session in sessions}) == 2:
        notify("not all models support the calculator: bits per byte leave out its calls")
    return sessions


def open_model(name: str, device: str, threads: int | None, **settings: Any) -> ChatSession:
    """A session with the model at a path, or of a DVC run, after warming it up with two tokens."""
    loaded = load_named(name, device, threads)
    with named_errors(name):
        session = ChatSession(*loaded, **settings)
        for _ in range(2):
            session.engine.append([0])
        return session


def comparison_lines(comparison: Comparison, headings: Sequence[str], width: int) -> Iterator[StyledLine]:
    """A prompt, the answers to it, and the bits per byte of each."""
    yield from ([("bold", line)] for line in wrap_text(f"> {comparison.prompt}", width))
    yield from columns(headings, list(map(format_answer, comparison.answers)), width)
    yield []
    yield from bits_table("Bits per byte", comparison.bits_per_byte())
    yield from ([("", line)] for note in notes(comparison) for line in wrap_text(note, width))


def format_answer(answer: ModelAnswer) -> str:
    """An answer and its statistics, or why there is none."""
    stats = answer.stats
    if stats is None:
        return f"No answer: {answer.error}"
    first = f"{plural(stats.tokens, 'token')}, first after {1000 * stats.first_token:.1f} ms"
    rate = f", then {stats.tokens_per_second:,.0f}/s" if stats.tokens > 1 else ""
    return f"{answer.message.text or '(no text)'}\n\n[{first}{rate}]"


def notes(comparison: Comparison) -> Iterator[str]:
    """Why answers have no bits per byte, where they have none."""
    for letter, answer, row in zip(ascii_uppercase, comparison.answers, comparison.nats, strict=False):
        problems = {model: nats for model, nats in zip(ascii_uppercase, row, strict=False) if isinstance(nats, str)}
        if answer.error:
            continue  # format_answer shows it
        if len(problems) == len(row) and len({*row}) == 1:
            yield f"– answer of {letter}: {row[0]}"
        else:
            yield from (f"– answer of {letter} under {model}: {problem}" for model, problem in problems.items())


def bits_table(caption: str, bits: BitsMatrix) -> Iterator[StyledLine]:
    """A row for each answer, a column for each model it is scored under."""
    letters = ascii_uppercase[: len(bits)]
    rows = [
        (f"answer of {letter}", *(number(one, 3) for one in row)) for letter, row in zip(letters, bits, strict=True)
    ]
    return aligned(caption, ("", *(f"under {letter}" for letter in letters)), rows)


def summary(comparisons: Sequence[Comparison]) -> Iterator[StyledLine]:
    """Bits per byte over all prompts, where there are several, and how fast each model was."""
    if len(comparisons) > 1:
        yield from bits_table(f"Bits per byte, all {len(comparisons)} prompts", pooled_bits_per_byte(comparisons))
        yield []
    rows = [
        (letter, number(speed.first_token and 1000 * speed.first_token, 1), number(speed.tokens_per_second))
        for letter, speed in zip(ascii_uppercase, speeds(comparisons), strict=False)
    ]
    yield from aligned("Speed", ("", "first token, ms (median)", "tokens/s after it"), rows)


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
    prompts = [
        {
            "prompt": one.prompt,
            "answers": list(map(answer_json, one.answers)),
            "bits_per_byte": one.bits_per_byte(),
            "notes": list(notes(one)),
        }
        for one in comparisons
    ]
    speed = [one._asdict() for one in speeds(comparisons)]
    return {"models": models, "prompts": prompts, "bits_per_byte": pooled_bits_per_byte(comparisons), "speed": speed}


def answer_json(answer: ModelAnswer) -> dict[str, Any]:
    """An answer's text, and its timings in seconds; null and the error where there is none."""
    if answer.stats is None:
        return {"text": None, "problem": answer.error}
    rate = {"tokens_per_second": answer.stats.tokens_per_second}
    return {"text": answer.message.text, **answer.stats._asdict(), **rate}
