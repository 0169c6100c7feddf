"""Chat with a model: one answer on stdout, or a conversation in the terminal."""

import argparse
import os
import stat
import sys
from io import UnsupportedOperation
from select import select

from chatmill.app import arguments
from chatmill.app.arguments import PROMPT_FILE_HELP, STDIN, join_prompt, read_text, unescaped
from chatmill.app.named_models import MODEL_FOLDERS, default_model, fetch_model
from chatmill.app.terminal.terminal_chat import TerminalChat, Transcript, describe_session
from chatmill.app.terminal.text import notify
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.model_loading import load_model, threads_for_chat
from chatmill.inference.sampler import Sampling

STDIN_WAIT_SECONDS = 1  # after which waiting for a silent pipe is reported
EPILOG = """examples:
  chatmill chat                                        a conversation in the terminal
  chatmill chat -p "What is 48 times 7?"               one answer, which alone is on stdout
  chatmill chat -p "Answer this letter:" < letter.txt  a file, or a pipe, is appended to the prompt
  chatmill chat --model ~/models/qwen -i -p "Hello!" --output chats/
  chatmill chat --load "chats/letter.jsonl 2"          the second chat of a file
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("prompt").add_argument
    add("-p", "--prompt", metavar="TEXT", help="answer this prompt and exit; text from a pipe is appended to it")
    add("--prompt-file", metavar="FILE", help=PROMPT_FILE_HELP)
    add("-i", "--interactive", action="store_true", help="continue the chat in the terminal after the answer")
    add("-s", "--system", default="", metavar="TEXT", help="system prompt (default: none)")
    add("--load", metavar="FILE", help="continue a saved chat; FILE may end with its number, as in 'FILE 2'")
    add = command.add_argument_group("model").add_argument
    add("-m", "--model", metavar="PATH", help=f"folder, file or DVC run (default: {MODEL_FOLDERS[0]})")
    arguments.add_loading(add)
    add = command.add_argument_group("sampling").add_argument
    arguments.add_answers(add)
    arguments.add_seed(add)
    arguments.add_repeated(add, "--stop", metavar="TEXT", help=r"end an answer before TEXT, in which \n is a newline")
    add = command.add_argument_group("output").add_argument
    add("--output", metavar="PATH", help="save the chat as JSON lines: a new file, or a folder for one named by time")
    add("-v", "--verbose", action="store_true", help="also print the model, and the tokens and ids of each exchange")
    add("-q", "--quiet", action="store_true", help="print only the answers")


def run(options: argparse.Namespace) -> None:
    arguments.check_answers(options)
    sampling = arguments.sampling(options)
    prompt = read_prompt(options)
    if prompt is not None and not options.interactive:
        open_chat(options, sampling, show_notices=options.verbose or sys.stderr.isatty()).ask(prompt)
        return
    from chatmill.app.terminal import editor  # slow to import, and not needed for one prompt

    with editor.use_terminal():
        editor.chat_loop(open_chat(options, sampling, show_notices=True), prompt)


def open_chat(options: argparse.Namespace, sampling: Sampling, *, show_notices: bool) -> TerminalChat:
    """Load the model, and start or continue a chat; files are checked before."""
    show_notices = show_notices and not options.quiet
    transcript = Transcript(options.output) if options.output else None
    saved = None
    if options.load is not None:
        from chatmill.app.inputs import read_numbered_chat  # not needed for a new chat

        saved = read_numbered_chat(options.load)
    model = options.model or default_model()
    if show_notices and sys.stderr.isatty():
        print(f"loading {model} …", end="\r", file=sys.stderr, flush=True)  # until a longer line overwrites it
    with fetch_model(model) as path:
        threads = options.threads or threads_for_chat(path)
        loaded = load_model(path, **arguments.loading(options) | {"threads": threads})
    stop = [unescaped(text) for text in options.stop]
    session = ChatSession(*loaded, sampling=sampling, max_tokens=options.max_tokens, stop=stop)
    chat = TerminalChat(session, transcript, show_notices=show_notices, verbose=options.verbose)
    notices = [f"{model}: {describe_session(session)}", *([chat.load(*saved)] if saved else [])]
    session.system = options.system or session.system
    for notice in notices if show_notices else []:
        notify(notice)
    return chat


def read_prompt(options: argparse.Namespace) -> str | None:
    """The prompt from the options, a file or a pipe; None where it is to be typed in the terminal."""
    file = options.prompt_file
    if file is None and should_read_stdin(after_prompt=options.prompt is not None):
        file = STDIN
    if options.prompt is None and file is None:
        return None
    return join_prompt(options.prompt, None if file is None else read_text(file))


def should_read_stdin(after_prompt: bool) -> bool:
    """Whether to read standard input; after a prompt only from a pipe, or from a file at its beginning."""
    if sys.stdin.isatty():
        return False
    try:
        stream = sys.stdin.fileno()
    except UnsupportedOperation:  # a program that calls this one has replaced it
        return not after_prompt
    is_file = stat.S_ISREG(os.fstat(stream).st_mode)
    if after_prompt and not is_file and not select([stream], [], [], STDIN_WAIT_SECONDS)[0]:
        notify("waiting for the end of stdin, which is appended to the prompt (to skip it: < /dev/null)")
    return not (after_prompt and is_file and os.lseek(stream, 0, os.SEEK_CUR))  # else a shell loop is reading it
