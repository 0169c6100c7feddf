"""Chat with a model: one answer on stdout, or a conversation in the terminal."""

import argparse
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import fields
from io import UnsupportedOperation
from pathlib import Path
from select import select

from chatmill.app.experiments import MODEL_FOLDERS, default_model, fetch_model
from chatmill.app.terminal.saved_chats import Transcript
from chatmill.app.terminal.settings import MAX_THREADS, check_positive, unescaped
from chatmill.app.terminal.terminal_chat import TerminalChat, describe_session, notify
from chatmill.datasets.formats.row_readers import MAX_ROW_BYTES
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.model_loading import load_model
from chatmill.inference.sampler import Sampling

STDIN_WAIT_SECONDS = 1  # seconds that a silent pipe is waited for without a word
EXAMPLES = """examples:
  chatmill chat                                        a conversation in the terminal
  chatmill chat -p "What is 48 times 7?"               one answer, alone on stdout
  chatmill chat -p "Answer this letter:" < letter.txt  a file, or a pipe, after the prompt
  chatmill chat --model ~/models/qwen -i -p "Hello!" --output chats/
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The options of `chatmill chat`."""
    command.formatter_class, command.epilog = argparse.RawDescriptionHelpFormatter, EXAMPLES
    add = command.add_argument_group("what is said").add_argument
    add("-p", "--prompt", metavar="TEXT", help="answer this and leave; what comes through a pipe follows after it")
    add("--prompt-file", metavar="FILE", help="the same from a file; - is standard input")
    add("-i", "--interactive", action="store_true", help="stay after the answer")
    add("-s", "--system", default="", metavar="TEXT", help="a system prompt")
    add = command.add_argument_group("who answers").add_argument
    add(
        "-m", "--model", metavar="PATH", help=f"a folder, a file, or a run that DVC knows (default: {MODEL_FOLDERS[0]})"
    )
    add("--tokenizer", type=Path, metavar="PATH", help="another tokenizer than the one that is with the model")
    add("--template", metavar="NAME", help="chatml, markers, llama3 … (default: the model's own)")
    add("--trust-tokenizer", action="store_true", help="also where the model was trained with another")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps … (default: the fastest that is there)")
    add("--threads", type=int, metavar="N", help="of the processor (default: one less than there are cores)")
    add = command.add_argument_group("how tokens are chosen").add_argument
    add("--max-tokens", type=int, default=256, metavar="N", help="of an answer (default: %(default)s)")
    add("--temperature", type=float, default=0.0, metavar="T", help="0 is the likeliest (the default)")
    add("--top-k", type=int, default=0, metavar="N", help="only the N likeliest tokens")
    add("--top-p", type=float, default=1.0, metavar="P", help="only the likeliest with P together")
    add("--min-p", type=float, default=0.0, metavar="P", help="only those P as likely as the likeliest")
    add("--repetition-penalty", type=float, default=1.0, metavar="R", help="above 1: fewer repetitions")
    add("--presence-penalty", type=float, default=0.0, metavar="P", help="above 0: less of what was said already")
    add("--frequency-penalty", type=float, default=0.0, metavar="F", help="the same, the more often it was said")
    add("--seed", type=int, default=0, metavar="N", help="of the choice among tokens")
    add(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help=r"an answer ends before it; may be repeated; knows \n",
    )
    add = command.add_argument_group("what is kept and told").add_argument
    add("--output", metavar="PATH", help="save the chat: a new JSON file, or a folder, for one named by the time")
    add("-v", "--verbose", action="store_true", help="show the ids and control tokens of each exchange")
    add("-q", "--quiet", action="store_true", help="the answers alone")


def run(options: argparse.Namespace) -> None:
    """Answer the prompt, or what comes through a pipe; on a terminal, chat."""
    check_positive("--max-tokens", options.max_tokens)
    if options.threads is not None:
        check_positive("--threads", options.threads, MAX_THREADS)
    sampling = Sampling(**{field.name: getattr(options, field.name) for field in fields(Sampling)})
    prompt = read_prompt(options)
    interactive = prompt is None or options.interactive
    show_notices = not options.quiet and (interactive or options.verbose or sys.stderr.isatty())
    transcript = Transcript(options.output) if options.output else None
    if prompt is None or interactive:
        from chatmill.app.terminal import editor  # one prompt needs no editor

        with editor.use_terminal():
            talk = TerminalChat(
                open_session(options, sampling, show_notices),
                transcript,
                show_notices=show_notices,
                verbose=options.verbose,
            )
            editor.chat_loop(talk, prompt)
    else:
        talk = TerminalChat(
            open_session(options, sampling, show_notices),
            transcript,
            show_notices=show_notices,
            verbose=options.verbose,
        )
        talk.ask(prompt)


def open_session(options: argparse.Namespace, sampling: Sampling, show_notices: bool) -> ChatSession:
    """The chat that the options ask for."""
    model = options.model or default_model()
    overrides = {"tokenizer": options.tokenizer, "template": options.template}
    with (
        status_line(f"loading {model} …") if show_notices and sys.stderr.isatty() else nullcontext(),
        fetch_model(model) as path,
    ):
        loaded = load_model(path, options.device, options.threads, trust_tokenizer=options.trust_tokenizer, **overrides)
    session = ChatSession(
        *loaded,
        system=options.system,
        sampling=sampling,
        max_tokens=options.max_tokens,
        stop=[unescaped(text) for text in options.stop],
    )
    if show_notices:
        notify(f"{model}: {describe_session(session)}")
    return session


@contextmanager
def status_line(line: str) -> Iterator[None]:
    """Show a line as long as something takes."""
    print(line, end="\r", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print(" " * len(line), end="\r", file=sys.stderr, flush=True)


def read_prompt(options: argparse.Namespace) -> str | None:
    """What is given to answer, as one text; None where it is to be typed."""
    parts = [] if options.prompt is None else [options.prompt]
    if options.prompt_file not in (None, "-"):
        with open(options.prompt_file, "rb") as file:
            parts.append(decode_utf8(file.read(MAX_ROW_BYTES + 1), options.prompt_file))
    elif options.prompt_file == "-" or should_read_stdin(bool(parts)):
        parts.append(decode_utf8(sys.stdin.buffer.read(MAX_ROW_BYTES + 1), "standard input"))
    if not parts:
        return None
    return "\n".join(part.strip("\n").rstrip() for part in parts).strip("\n")


def should_read_stdin(after_prompt: bool) -> bool:
    """Whether standard input is to be read: after a prompt, only if it is a pipe or a file that nobody has begun."""
    if sys.stdin is None or sys.stdin.isatty():
        return False
    if not after_prompt:
        return True
    try:
        stream = sys.stdin.fileno()
    except UnsupportedOperation:
        return False
    mode = os.fstat(stream).st_mode
    if stat.S_ISREG(mode):
        return os.lseek(stream, 0, os.SEEK_CUR) == 0  # a loop over lines, say, has begun its file
    if stat.S_ISFIFO(mode):
        with suppress(OSError):  # where pipes cannot be waited for
            if not select([stream], [], [], STDIN_WAIT_SECONDS)[0]:
                notify("waiting for the end of standard input, which follows the prompt (< /dev/null: nothing does)")
        return True
    return False


def decode_utf8(content: bytes, name: str) -> str:
    """The text of UTF-8. Raises ValueError with the place of what is none."""
    if len(content) > MAX_ROW_BYTES:
        raise ValueError(f"{name}: over {MAX_ROW_BYTES:,} bytes: shorten it")
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 at byte {error.start}: save it as UTF-8") from error
