"""Chat with a model: one answer on stdout, or a conversation in the terminal."""

import argparse
import sys
from pathlib import Path

from chatmill.inference.chat import ChatSession
from chatmill.inference.loading import load
from chatmill.inference.sampler import Sampling

MODELS = (Path("data/export/onnx"), Path("data/model"))  # where the pipeline leaves them; the first that is there


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The options of `chatmill chat`."""
    add = command.add_argument
    add("--model", type=Path, metavar="PATH", help=f"a model's folder or file (default: {MODELS[0]})")
    add("-p", "--prompt", metavar="TEXT", help="answer this alone, on stdout, as what comes through a pipe")
    add("--system", default="", metavar="TEXT", help="a system prompt")
    add("--max-tokens", type=int, default=256, metavar="N", help="of an answer (default: %(default)s)")
    add("--temperature", type=float, default=0.0, metavar="T", help="0 is the likeliest (the default)")
    add("--top-k", type=int, default=0, metavar="N", help="only the N likeliest tokens")
    add("--top-p", type=float, default=1.0, metavar="P", help="only the likeliest with P together")
    add("--min-p", type=float, default=0.0, metavar="P", help="only those P as likely as the likeliest")
    add("--repetition-penalty", type=float, default=1.0, metavar="R", help="above 1: fewer repetitions")
    add("--seed", type=int, default=0, metavar="N", help="of the choice among tokens")
    add("--device", default="auto", help="for PyTorch: auto, cpu, cuda, mps")
    add("--threads", type=int, metavar="N", help="one less than there are cores if not given")


def run(options: argparse.Namespace) -> None:
    """Answer the prompt, or what comes through a pipe; on a terminal, chat."""
    for name in ("max_tokens", "threads"):
        if (value := getattr(options, name)) is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} {value}: expected 1 or more")
    session = open_session(options)
    if options.prompt is not None:
        answer(session, options.prompt)
    elif not sys.stdin.isatty():
        answer(session, sys.stdin.read())
    else:
        from chatmill.terminal import converse  # one prompt needs no editor

        converse(session)


def open_session(options: argparse.Namespace) -> ChatSession:
    """The chat that the options ask for."""
    sampling = Sampling(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        seed=options.seed,
    )
    loaded = load(options.model or default_model(), options.device, options.threads)
    return ChatSession(*loaded, system=options.system, sampling=sampling, max_tokens=options.max_tokens)


def default_model() -> Path:
    """The model the pipeline made in this folder."""
    for folder in MODELS:
        if folder.is_dir():
            return folder
    raise ValueError(f"no {' or '.join(map(str, MODELS))} here: run `dvc repro`, or name a model with --model")


def answer(session: ChatSession, question: str) -> None:
    """Print one answer alone on stdout, as it is generated."""
    if not (question := question.strip()):
        raise ValueError("the prompt is empty: give some text after -p, or through a pipe")
    for text in session.ask(question):
        print(text, end="", flush=True)
    print()
