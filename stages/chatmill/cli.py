"""The `chatmill` command."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from chatmill.inference.chat import ChatSession
from chatmill.inference.loading import load
from chatmill.inference.sampler import Sampling

MODELS = (Path("data/export/onnx"), Path("data/model"))  # where the pipeline leaves them; the first that is there


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; what goes wrong is one line on stderr and exit code 1."""
    options = parser().parse_args(arguments)
    try:
        options.run(options)
    except (ValueError, OSError) as error:
        print(f"chatmill: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="chatmill", description="Small chat models that run anywhere.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    chat = commands.add_parser("chat", help="chat with a model in the terminal")
    chat.add_argument("--model", type=Path, metavar="PATH", help=f"a model's folder or file (default: {MODELS[0]})")
    chat.add_argument(
        "-p", "--prompt", metavar="TEXT", help="answer this alone, on stdout, as what comes through a pipe"
    )
    chat.add_argument("--system", default="", metavar="TEXT", help="a system prompt")
    chat.add_argument("--max-tokens", type=int, default=256, metavar="N", help="of an answer (default: %(default)s)")
    chat.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is the likeliest (the default)")
    chat.add_argument("--top-k", type=int, default=0, metavar="N", help="only the N likeliest tokens")
    chat.add_argument("--top-p", type=float, default=1.0, metavar="P", help="only the likeliest with P together")
    chat.add_argument("--min-p", type=float, default=0.0, metavar="P", help="only those P as likely as the likeliest")
    chat.add_argument("--repetition-penalty", type=float, default=1.0, metavar="R", help="above 1: fewer repetitions")
    chat.add_argument("--seed", type=int, default=0, metavar="N", help="of the choice among tokens")
    chat.add_argument("--device", default="auto", help="for PyTorch: auto, cpu, cuda, mps")
    chat.add_argument("--threads", type=int, metavar="N", help="one less than there are cores if not given")
    chat.set_defaults(run=run_chat)
    return top


def run_chat(options: argparse.Namespace) -> None:
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


if __name__ == "__main__":
    sys.exit(main())
