"""Compares models: their answers to the same prompts side by side, or by a verdict on the same data.

The measure is bits per byte of the answer's text: its nats under a model, after the same prompt, in that model's own
template and tokens, divided by ln 2 and by the UTF-8 bytes of the text. The number of bytes is thus the same under
every model. What a template adds to a text (escapes, a space before it) adds nats but no bytes. As in the pipeline's
metrics, control tokens and outputs of the calculator are in neither sum. A call of the calculator is scored as text;
where one of the models does not support calls, answers are scored without them.
"""

import argparse
import json
import shutil
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from string import ascii_uppercase
from typing import Any, NamedTuple

import numpy as np

from chatmill.app import arguments
from chatmill.app.arguments import PROMPT_FILE_HELP, check_positive, join_prompt, read_text
from chatmill.app.named_models import load_named, named_errors
from chatmill.app.runs import add_seeds
from chatmill.app.terminal.terminal_chat import describe_session, device_name
from chatmill.app.terminal.text import StyledLine, aligned, columns, notify, plural, print_lines, wrap_text
from chatmill.app.verdict import views
from chatmill.app.verdict.verdict import LIMIT, Run
from chatmill.app.verdict.views import compare_sides, runs_of
from chatmill.conversation import LossKind, Message
from chatmill.datasets.formats.registry import FORMAT_NAMES
from chatmill.encoded.token_files import read_meta
from chatmill.evaluation.bits_per_byte import bits_per_byte, nats_of_logits
from chatmill.inference.chat_session import TOOL_TOKENS, AnswerStats, ChatSession
from chatmill.pipeline.processes import USER_ERRORS, error_line
from chatmill.report.markup import number

BitsMatrix = list[list[float | None]]  # bits per byte of the answer of each model (rows) under each (columns)


class ModelAnswer(NamedTuple):
    message: Message = Message("assistant", ())
    stats: AnswerStats | None = None
    error: str = ""


class Comparison(NamedTuple):
    """The answers to a prompt, and the nats of each (rows) under each model (columns), or a text that says why not.

    `num_bytes` has the number of bytes of each answer's scored text.
    """

    prompt: str
    answers: list[ModelAnswer]
    nats: list[list[float | str]]
    num_bytes: list[int]

    def bits_per_byte(self) -> BitsMatrix:
        """Bits per byte of each answer under each model; None where there is no number."""
        return [
            [None if isinstance(nats, str) else bits_per_byte(nats, size) for nats in row]
            for row, size in zip(self.nats, self.num_bytes, strict=True)
        ]


def compare_answers(prompt: str, sessions: Sequence[ChatSession]) -> Comparison:
    """Generate an answer with every model, and score every answer under every model."""
    answers = [generate_answer(session, prompt) for session in sessions]
    scored = [answer.message for answer in answers]
    if not all(map(supports_tools, sessions)):
        scored = [Message.from_text("assistant", message.text) for message in scored]
    num_bytes = [sum(len(part.text.encode()) for part in one.parts if part.kind != "output") for one in scored]
    nats = [
        [(answer.error and "no answer") or nats_or_error(session, prompt, message) for session in sessions]
        for answer, message in zip(answers, scored, strict=True)
    ]
    return Comparison(prompt, answers, nats, num_bytes)


def supports_tools(session: ChatSession) -> bool:
    return session.template.escapes and {*TOOL_TOKENS} <= session.tokenizer.special.keys()


def generate_answer(session: ChatSession, prompt: str) -> ModelAnswer:
    session.clear()
    session.engine.rewind(0)
    session.sampling = session.sampling  # restarts the random numbers from the seed
    try:
        deque(session.ask(prompt), maxlen=0)
    except USER_ERRORS as error:
        return ModelAnswer(error=error_line(error))
    return ModelAnswer(session.conversation[-1], session.answer_stats)


def nats_or_error(session: ChatSession, prompt: str, message: Message) -> float | str:
    try:
        return answer_nats(session, prompt, message)
    except USER_ERRORS as error:
        return error_line(error)


def answer_nats(session: ChatSession, prompt: str, message: Message) -> float:
    """The nats of an answer's text and calls after a prompt. Raises ValueError where it has none, or infinite ones."""
    if not any(part.text for part in message.parts if part.kind != "output"):
        raise ValueError("no text")
    system = [Message.from_text("system", session.system)] if session.system else []
    prompt_ids, _ = session.tokenizer.encode_segments(
        session.template.prompt([*system, Message.from_text("user", prompt)])
    )
    answer_ids, losses = session.tokenizer.encode_segments(session.template.answer(message))
    logits = session.engine.sequence_logits([*prompt_ids, *answer_ids])[len(prompt_ids) - 1 :]
    with np.errstate(invalid="ignore"):
        nats = nats_of_logits(logits, np.array([prompt_ids[-1], *answer_ids]))
    total = float(nats[(np.array(losses) == LossKind.TRAINED) & session.tokenizer.is_text[answer_ids]].sum())
    if not np.isfinite(total):
        raise ValueError("the model's probability of this text is 0 or not a number")
    return total


def pooled_bits_per_byte(comparisons: Iterable[Comparison]) -> BitsMatrix:
    """Bits per byte over all prompts: nats and bytes are summed before they are divided.

    An answer that one of the models could not score is left out under all, so that the texts of a row are the same.
    """
    by_answer = zip(*(zip(one.nats, one.num_bytes, strict=True) for one in comparisons), strict=True)
    result = []
    for rows in by_answer:
        complete = [(nats, size) for nats, size in rows if not any(isinstance(value, str) for value in nats)]
        total = sum(size for _, size in complete)
        sums = np.sum([nats for nats, _ in complete], axis=0) if complete else np.zeros(len(rows[0][0]))
        result.append([bits_per_byte(float(nats), total) for nats in sums])
    return result


def speeds(comparisons: Sequence[Comparison]) -> list[dict[str, float | None]]:
    """How fast each model was: the median seconds to the first token, and then the rate; None for too few tokens."""
    result = []
    for answers in zip(*(one.answers for one in comparisons), strict=True):
        timings = [answer.stats for answer in answers if answer.stats and answer.stats.tokens]
        tokens = sum(timing.tokens - 1 for timing in timings)
        seconds = sum(timing.seconds - timing.first_token for timing in timings)
        first = median(timing.first_token for timing in timings) if timings else None
        result.append({"first_token": first, "tokens_per_second": tokens / seconds if seconds > 0 else None})
    return result


# Compare models: their answers to the same prompts side by side, or by a verdict on the same data.

DATA_OPTIONS = ("format", "limit", "tokens", "html", "seeds")


def add_arguments(command: argparse.ArgumentParser) -> None:
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
    if options.prompt or options.prompt_file or options.prompt_list:
        raise ValueError("expected either --data, or prompts")
    if options.limit is not None:
        check_positive("--limit", options.limit)
    file = options.html
    if file and (file.is_dir() or not file.absolute().parent.is_dir()):  # known before the models are measured
        raise ValueError(f"--html: expected a file in a folder that exists, got {file}")
    if options.tokens:
        read_meta(options.tokens)
    sides = list(map(runs_of, options.models))
    if options.seeds:
        sides = add_seeds(sides, Path.cwd())
        for name, side in zip(options.models, sides, strict=True):
            notify(f"{name}: {plural(len(side), 'seed')}: {', '.join(side)}")
    settings = options.format, options.limit or LIMIT, options.tokens, options.device, options.threads
    verdict = compare_sides(sides, notify_of_run, options.data, *settings)
    if file:
        file.write_text(views.page(verdict), encoding="utf-8")
    if options.json:
        print(json.dumps(views.as_json(verdict)))
    else:
        print_lines(views.terminal_lines(verdict, shutil.get_terminal_size().columns), sys.stdout)


def notify_of_run(run: Run) -> None:
    engine = run.loaded.engine
    documents = len(run.text.sums["all"][0])
    counts = f"{plural(documents, 'document')} and {plural(len(run.correct), 'exercise')}"
    notify(f"{run.name}: {engine.name} on {device_name(engine)}: {counts}")


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
    if len({supports_tools(session) for session in sessions}) == 2:
        notify("not all models support the calculator: bits per byte leave out its calls")
    return sessions


def comparison_lines(comparison: Comparison, headings: Sequence[str], width: int) -> Iterator[StyledLine]:
    yield from ([("bold", line)] for line in wrap_text(f"> {comparison.prompt}", width))
    yield from columns(headings, list(map(format_answer, comparison.answers)), width)
    yield []
    yield from bits_table("Bits per byte", comparison.bits_per_byte())
    yield from ([("", line)] for note in notes(comparison) for line in wrap_text(note, width))


def format_answer(answer: ModelAnswer) -> str:
    stats = answer.stats
    if stats is None:
        return f"No answer: {answer.error}"
    first = f"{plural(stats.tokens, 'token')}, first after {1000 * stats.first_token:.1f} ms"
    rate = f", then {stats.tokens_per_second:,.0f}/s" if stats.tokens > 1 else ""
    return f"{answer.message.text or '(no text)'}\n\n[{first}{rate}]"


def notes(comparison: Comparison) -> Iterator[str]:
    for letter, answer, row in zip(ascii_uppercase, comparison.answers, comparison.nats, strict=False):
        problems = {model: nats for model, nats in zip(ascii_uppercase, row, strict=False) if isinstance(nats, str)}
        if answer.error:
            continue  # format_answer shows it
        if len(problems) == len(row) and len({*row}) == 1:
            yield f"– answer of {letter}: {row[0]}"
        else:
            yield from (f"– answer of {letter} under {model}: {problem}" for model, problem in problems.items())


def bits_table(caption: str, bits: BitsMatrix) -> Iterator[StyledLine]:
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
    rows = []
    for letter, speed in zip(ascii_uppercase, speeds(comparisons), strict=False):
        first = speed["first_token"]
        rows.append((letter, number(first and 1000 * first, 1), number(speed["tokens_per_second"])))
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
    bits = pooled_bits_per_byte(comparisons)
    return {"models": models, "prompts": prompts, "bits_per_byte": bits, "speed": speeds(comparisons)}


def answer_json(answer: ModelAnswer) -> dict[str, Any]:
    if answer.stats is None:
        return {"text": None, "problem": answer.error}
    rate = {"tokens_per_second": answer.stats.tokens_per_second}
    return {"text": answer.message.text, **answer.stats._asdict(), **rate}
