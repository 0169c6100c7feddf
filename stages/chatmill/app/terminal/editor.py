"""The chat in the terminal: a line editor with history, slash commands, and answers as they are generated."""

import os
import re
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from tty import LFLAG
from typing import TypeVar

from prompt_toolkit import PromptSession
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import is_searching
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output
from prompt_toolkit.shortcuts import CompleteStyle

from chatmill.app.arguments import check_positive, unescaped
from chatmill.app.inputs import read_numbered_chat
from chatmill.app.terminal.terminal_chat import TerminalChat, describe_session, format_stats, save_chat
from chatmill.app.terminal.text import notify
from chatmill.app.terminal.tokens import show_likeliest, show_probabilities, show_text_tokens, show_tokens
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.sampler import Sampling
from chatmill.pipeline.processes import USER_ERRORS, error_line

Number = TypeVar("Number", int, float)


@contextmanager
def use_terminal() -> Iterator[None]:
    """Read and edit at the terminal, also where stdin or stdout is a pipe or a file. Raises ValueError without one."""
    if not any(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise ValueError("there is no terminal to chat in: pass a prompt with -p, or through a pipe")
    os.environ.setdefault("PROMPT_TOOLKIT_NO_CPR", "1")  # else terminals without cursor reports show a warning
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background jobs are started with it ignored
    terminal, output = create_input(always_prefer_tty=True), create_output(always_prefer_tty=True)
    with create_app_session(input=terminal, output=output), terminal.raw_mode():
        # Keys that are typed during an answer are not echoed, but kept for the next prompt; Ctrl-C remains a signal.
        attributes = termios.tcgetattr(terminal.fileno())
        attributes[LFLAG] |= termios.ISIG
        termios.tcsetattr(terminal.fileno(), termios.TCSANOW, attributes)
        yield


def chat_loop(chat: TerminalChat, first_prompt: str | None = None) -> None:
    editor: PromptSession[str] = PromptSession(
        "> ",
        multiline=True,
        prompt_continuation="  ",
        history=_history(),
        key_bindings=_KEYS,
        completer=_Completer(),
        complete_while_typing=False,
        complete_style=CompleteStyle.READLINE_LIKE,
        reserve_space_for_menu=0,
        enable_suspend=True,
    )
    if chat.show_notices:
        notify("/help for help, Ctrl-D to leave", dim=True)
    if first_prompt is not None:
        _respond(chat, f"/{first_prompt}" if first_prompt.startswith("/") else first_prompt)
    with suppress(EOFError):
        while True:
            try:
                text = editor.prompt()
            except KeyboardInterrupt:
                if not editor.default_buffer.text:
                    notify("Ctrl-D or /bye leaves")
            else:
                text = text.strip("\n").rstrip()
                _respond(chat, "/bye" if text in ("exit", "quit", "/exit", "/quit") else text)
    if chat.transcript and chat.transcript.is_created:
        notify(f"saved to {chat.transcript.path}")


def _respond(chat: TerminalChat, text: str) -> None:
    """Run a command, or answer a message. Raises EOFError where the user leaves."""
    try:
        if text.startswith("/") and not text.startswith("//"):
            run_command(chat, text)
        else:
            chat.ask(text.removeprefix("/"))
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # the reader of stdout has exited
        raise
    except USER_ERRORS as error:
        notify(error_line(error))


_KEYS = KeyBindings()


@_KEYS.add("enter", filter=~is_searching)
def _send(event: KeyPressEvent) -> None:
    buffer = event.current_buffer
    if buffer.document.char_before_cursor == "\\":
        buffer.delete_before_cursor()
        buffer.newline(copy_margin=False)
    else:
        buffer.validate_and_handle()


@_KEYS.add("escape", "enter")
def _insert_newline(event: KeyPressEvent) -> None:
    event.current_buffer.newline(copy_margin=False)


class _Completer(Completer):
    def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        text = document.text_before_cursor
        command, _, argument = text.partition(" ")
        if command in ("/load", "/save"):
            yield from PathCompleter(expanduser=True).get_completions(Document(argument), event)
        elif text:
            words = [f"/set {name} " for name in SETTINGS] if command == "/set" else [f"{name} " for name in COMMANDS]
            yield from (Completion(word, -len(text)) for word in words if word.startswith(text))


def _history() -> History:
    """The history of earlier chats, in a folder of the user's alone; in memory where no file can be written."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"), "chatmill")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "history").touch(mode=0o600)
    except OSError as error:
        notify(f"{error_line(error)}: the input history is not saved for the next chat")
        return InMemoryHistory()
    return FileHistory(folder / "history")


# Commands: lines that begin with a slash.

KEYS = """Enter sends; Alt-Enter, or a backslash before Enter, inserts a newline. Tab
completes, Up recalls earlier input, Ctrl-C stops an answer, Ctrl-D leaves.
To send a message that begins with a slash, type two."""
EMPTY = "-"  # as an argument it removes a text
SETTINGS = (*(field.name for field in fields(Sampling)), "max_tokens", "stop")
SPEAKERS = {"system": "system", "user": "you", "assistant": "model"}
COMMANDS = {  # what each takes, and does
    "/help": ("", "show this list"),
    "/clear": ("", "remove all messages except the system prompt"),
    "/system": ("[TEXT]", f"show the system prompt, or change it; {EMPTY} removes it"),
    "/set": ("[NAME [VALUE]]", "show settings, such as temperature, or change one"),
    "/show": ("", "show the conversation"),
    "/save": ("[FILE]", "save the chat as training data; FILE may be a folder"),
    "/load": ("FILE [N]", "continue a saved chat; N is its number in the file"),
    "/regenerate": ("", "answer the latest question again"),
    "/undo": ("", "remove the latest question and its answer"),
    "/tokens": ("[TEXT]", "show tokens and ids of the latest exchange, or of TEXT"),
    "/why": ("[N]", "show probabilities of the answer, or likely tokens at N"),
    "/stats": ("", "show the model, and numbers of tokens and speeds"),
    "/bye": ("", "leave"),
}


def run_command(chat: TerminalChat, line: str) -> None:
    """Run a command. Raises ValueError where it is unknown or fails, and EOFError to leave."""
    name, *rest = line.split(maxsplit=1)
    text, session = "".join(rest), chat.session
    if name not in COMMANDS:
        raise ValueError(f"unknown command {name}: /help lists them; to send a message that begins with /, type //")
    expected, _ = COMMANDS[name]
    if (text and not expected) or (not text and expected.startswith("FILE")):
        raise ValueError(f"{name}: expected {expected or 'no arguments'}, got {text!r}")
    match name:
        case "/help":
            for listed, (arguments, purpose) in COMMANDS.items():
                notify(f"{f'{listed} {arguments}':<20} {purpose}")
            notify(KEYS)
        case "/clear":
            chat.start_conversation([])
            notify("the conversation was cleared" + (", except for the system prompt" if session.system else ""))
        case "/system":
            if text:
                session.system = "" if text == EMPTY else text
            notify(f"system prompt: {session.system}" if session.system else "no system prompt")
        case "/set":
            _change_settings(session, text)
        case "/show":
            for message in session.conversation:
                notify(f"{SPEAKERS[message.role]}: {message.text}")
        case "/save":
            notify(f"saved to {save_chat(session.conversation, text or './')}")
        case "/load":
            notify(chat.load(*read_numbered_chat(text)))
        case "/regenerate":
            _regenerate(chat)
        case "/undo":
            if (question := session.undo()) is None:
                raise ValueError("there is no question to undo")
            chat.update_transcript()
            notify(f"removed, with its answer: {question}")
        case "/tokens":
            show_text_tokens(text, session.tokenizer) if text else show_tokens(session)
        case "/why":
            show_likeliest(session, text) if text else show_probabilities(session)
        case "/stats":
            notify(describe_session(session))
            notify(f"latest: {format_stats(stats, session)}" if (stats := session.answer_stats) else "no answer yet")
        case "/bye":
            raise EOFError


def _change_settings(session: ChatSession, argument: str) -> None:
    name, *value = re.split(r"\s*=\s*|\s+", argument, maxsplit=1)
    name = name.replace("-", "_")
    if name and name not in SETTINGS:
        raise ValueError(f"unknown setting {name!r}: expected one of {', '.join(SETTINGS)}")
    for text in value:
        if name == "stop":
            session.stop = () if text == EMPTY else (unescaped(text),)
        elif name == "max_tokens":
            session.max_tokens = check_positive(name, _number(name, text, int))
        else:
            kind = type(getattr(session.sampling, name))
            session.sampling = replace(session.sampling, **{name: _number(name, text, kind)})
    values = asdict(session.sampling) | {"max_tokens": session.max_tokens}
    values["stop"] = ", ".join(map(repr, session.stop)) or EMPTY
    for one in [name] if name else SETTINGS:
        notify(f"{one:<18} {values[one]}")


def _number(name: str, text: str, kind: type[Number]) -> Number:
    try:
        return kind(text)
    except ValueError as error:
        raise ValueError(f"{name}: expected {'an integer' if kind is int else 'a number'}, got {text!r}") from error


def _regenerate(chat: TerminalChat) -> None:
    before = chat.session.conversation
    answer = chat.session.regenerate()
    if chat.session.sampling.temperature == 0:
        notify("at temperature 0 the answer is always the same: try /set temperature 0.8")
    try:
        chat.show_answer(answer)
    finally:
        if len(chat.session.conversation) < len(before):  # it was stopped before it began
            chat.session.set_conversation(before)
            chat.update_transcript()
