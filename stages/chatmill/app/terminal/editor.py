"""The chat in the terminal: a line editor with history, slash commands, and answers as they are generated."""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import create_app_session, get_app_session
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
from chatmill.app.terminal.text import format_duration, notify, plural
from chatmill.app.terminal.tokens import show_likeliest, show_probabilities, show_text_tokens, show_tokens
from chatmill.conversation import Message
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.sampler import Sampling
from chatmill.pipeline.processes import USER_ERRORS, error_line

if sys.platform != "win32":
    import termios

FILE_COMMANDS = ("/load", "/save")


@contextmanager
def use_terminal() -> Iterator[None]:
    """Read and edit at the terminal, also where stdin or stdout is a pipe or a file. Raises ValueError without one."""
    if not any(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise ValueError("there is no terminal to chat in: pass a prompt with -p, or through a pipe")
    os.environ.setdefault("PROMPT_TOOLKIT_NO_CPR", "1")  # else terminals without cursor reports show a warning
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background jobs are started with it ignored
    terminal_input, terminal_output = create_input(always_prefer_tty=True), create_output(always_prefer_tty=True)
    with create_app_session(input=terminal_input, output=terminal_output), _typed_ahead(terminal_input.fileno()):
        try:
            yield
        finally:
            terminal_output.disable_bracketed_paste()
            terminal_output.flush()


@contextmanager
def _typed_ahead(terminal: int) -> Iterator[None]:
    """Keep the keys that are typed while no prompt reads them, as during an answer, for the next one; do not echo them.

    Ctrl-C remains a signal; it discards the keys before it.
    """
    if sys.platform == "win32":
        yield
        return
    before = termios.tcgetattr(terminal)
    iflag, oflag, cflag, lflag, *others = before
    lflag &= ~(termios.ECHO | termios.ICANON)  # with ICANON the terminal would drop what exceeds 4,095 characters
    termios.tcsetattr(terminal, termios.TCSANOW, [iflag & ~termios.ICRNL, oflag, cflag, lflag, *others])
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal was closed
            termios.tcsetattr(terminal, termios.TCSANOW, before)


def chat_loop(chat: TerminalChat, first_prompt: str | None = None) -> None:
    editor: PromptSession[str] = PromptSession(
        "> ",
        multiline=True,
        prompt_continuation="  ",
        history=_history(),
        key_bindings=_keys(),
        completer=_Completer(),
        complete_while_typing=False,
        complete_style=CompleteStyle.READLINE_LIKE,
        reserve_space_for_menu=0,
        enable_suspend=True,
    )
    if chat.show_notices:
        notify("/help for help, Ctrl-D to leave", dim=True)
    if first_prompt is not None:
        with suppress(KeyboardInterrupt):
            _respond(TerminalChat.ask, chat, first_prompt)
    with suppress(EOFError):
        while True:
            with suppress(KeyboardInterrupt):
                _take_turn(chat, editor)
    if chat.transcript and chat.transcript.file:
        notify(f"saved to {chat.transcript.file}")


def _take_turn(chat: TerminalChat, editor: PromptSession[str]) -> None:
    """Read a line and respond to it. Raises EOFError where the user leaves, KeyboardInterrupt at Ctrl-C."""
    try:
        text = editor.prompt().strip("\n").rstrip()
    except KeyboardInterrupt:
        if not editor.default_buffer.text:
            notify("Ctrl-D or /bye leaves")
        return
    if text in ("exit", "quit"):
        notify(f"/bye or Ctrl-D leaves (/{text} does, too)")
    elif text.startswith("/") and not text.startswith("//"):
        _respond(run_command, chat, text)
    else:
        _respond(TerminalChat.ask, chat, text.removeprefix("/"))


def _respond(respond: Callable[[TerminalChat, str], None], chat: TerminalChat, text: str) -> None:
    output = get_app_session().output
    output.enable_bracketed_paste()  # of texts that are pasted meanwhile
    output.flush()
    try:
        respond(chat, text)
    except BrokenPipeError:  # the reader of stdout has exited
        raise
    except USER_ERRORS as error:
        notify(error_line(error))


def _keys() -> KeyBindings:
    """Enter sends; Alt-Enter inserts a newline, and so does Enter after a backslash, which is removed."""
    keys = KeyBindings()

    @keys.add("enter", filter=~is_searching)
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.char_before_cursor == "\\":
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys


class _Completer(Completer):
    def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        command, space, argument = document.text_before_cursor.partition(" ")
        if not space:
            names = [name for name in SLASH_COMMANDS if command and name.startswith(command)]
            yield from (Completion(f"{name} ", -len(command)) for name in names)
        elif command in FILE_COMMANDS:
            yield from PathCompleter(expanduser=True).get_completions(Document(argument), event)
        elif command == "/set":
            yield from (Completion(f"{name} ", -len(argument)) for name in SETTINGS if name.startswith(argument))


class _FileHistory(FileHistory):
    """A history file; where it cannot be written, the line is used but not remembered."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def _history() -> History:
    """The history of earlier chats, in a file that only the user may read; in memory where no file can be written."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
        file = Path(state, "chatmill", "history")
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        reason = error_line(error) if isinstance(error, OSError) else str(error)
        notify(f"{reason}: the input history is not saved for the next chat")
        return InMemoryHistory()
    return _FileHistory(str(file))


# Commands: lines that begin with a slash.

KEYS = """Enter sends; Alt-Enter, or a backslash before Enter, inserts a newline. Tab
completes, Up recalls earlier input, Ctrl-C stops an answer, Ctrl-D leaves.
To send a message that begins with a slash, type two."""
ALIASES = {"/exit": "/bye", "/quit": "/bye", "/?": "/help", "/retry": "/regenerate"}  # in other programs
EMPTY = "-"  # as an argument it removes a text
SAMPLING_SETTINGS = [field.name for field in fields(Sampling)]
SETTINGS = (*SAMPLING_SETTINGS, "max_tokens", "stop")
_SPEAKERS = {"system": "system", "user": "you", "assistant": "model"}


SLASH_COMMANDS = {  # what each takes, and does
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
    name, text, session = ALIASES.get(name, name), "".join(rest), chat.session
    if name not in SLASH_COMMANDS:
        raise ValueError(f"unknown command {name}: /help lists them; to send a message that begins with /, type //")
    if text and not SLASH_COMMANDS[name][0]:
        raise ValueError(f"{name}: expected no arguments, got {text!r}")
    match name:
        case "/help":
            for listed, (arguments, purpose) in SLASH_COMMANDS.items():
                notify(f"{f'{listed} {arguments}':<20} {purpose}")
            notify(KEYS)
        case "/clear":
            chat.start_conversation()
            session.clear()
            notify("the conversation was cleared" + (", except for the system prompt" if session.system else ""))
        case "/system":
            if text:
                session.system = "" if text == EMPTY else text
            notify(f"system prompt: {session.system}" if session.system else "no system prompt")
        case "/set":
            _change_settings(session, text)
        case "/show":
            _show_conversation(session)
        case "/save":
            notify(f"saved to {save_chat(session.conversation, text or './')}")
        case "/load" if text:
            notify(chat.load(*read_numbered_chat(text)))
        case "/load":
            raise ValueError("/load: expected a file, and its conversation's number if it has several: /load FILE 2")
        case "/regenerate":
            _regenerate(chat)
        case "/undo":
            if (question := session.undo()) is None:
                raise ValueError("there is no question to undo")
            chat.update_transcript()
            notify(f"removed, with its answer: {question}")
        case "/tokens" if text:
            show_text_tokens(text, session.tokenizer)
        case "/tokens":
            if not any(message.role == "assistant" for message in session.conversation):
                raise ValueError("there is no answer yet: ask something, or pass a text, as in /tokens Hello")
            show_tokens(session)
        case "/why" if text.isdecimal():
            show_likeliest(session, int(text))
        case "/why":
            if text:
                raise ValueError(f"/why: expected the number of a token of the latest answer, got {text!r}")
            show_probabilities(session)
        case "/stats":
            _show_statistics(chat)
        case "/bye":
            raise EOFError


def _change_settings(session: ChatSession, argument: str) -> None:
    name, *value = re.split(r"\s*=\s*|\s+", argument, maxsplit=1)
    name = name.replace("-", "_")
    if name and name not in SETTINGS:
        raise ValueError(f"unknown setting {name!r}: expected one of {', '.join(SETTINGS)}")
    if value:
        _change_setting(session, name, value[0])
    values = {one: getattr(session.sampling, one) for one in SAMPLING_SETTINGS}
    values |= {"max_tokens": session.max_tokens, "stop": ", ".join(map(repr, session.stop)) or EMPTY}
    for one in [name] if name else SETTINGS:
        notify(f"{one:<18} {values[one]}")


def _change_setting(session: ChatSession, name: str, text: str) -> None:
    """Raises ValueError for a value that is no number, or out of range."""
    if name == "stop":
        session.stop = () if text == EMPTY else (unescaped(text),)
        return
    is_whole = name == "max_tokens" or isinstance(getattr(session.sampling, name), int)
    try:
        value: Any = int(text) if is_whole else float(text)
    except ValueError as error:
        raise ValueError(f"{name}: expected {'an integer' if is_whole else 'a number'}, got {text!r}") from error
    if name == "max_tokens":
        session.max_tokens = check_positive(name, value)
    else:
        session.sampling = replace(session.sampling, **{name: value})


def _show_conversation(session: ChatSession) -> None:
    if not session.conversation:
        notify("the conversation is empty")
    num_dropped = session.num_dropped
    for message in session.conversation:
        is_dropped = message.role != "system" and num_dropped > 0
        num_dropped -= is_dropped
        notify(f"{'(dropped) ' if is_dropped else ''}{_format_message(message)}", dim=is_dropped)


def _format_message(message: Message) -> str:
    marks = {"text": "{}", "call": "[{}", "output": " = {}] "}
    text = "".join(marks[part.kind].format(part.text) for part in message.parts)
    return f"{_SPEAKERS[message.role]}: {text}"


def _regenerate(chat: TerminalChat) -> None:
    before = chat.session.conversation
    if chat.session.sampling.temperature == 0 and any(message.role == "user" for message in before):
        notify("at temperature 0 the answer is always the same: try /set temperature 0.8")
    try:
        chat.show_answer(chat.session.regenerate())
    finally:
        if len(chat.session.conversation) < len(before):
            chat.session.set_conversation(before)
            chat.update_transcript()


def _show_statistics(chat: TerminalChat) -> None:
    session, answers = chat.session, chat.answer_stats
    notify(describe_session(session))
    if not answers:
        notify("no answer yet")
        return
    if session.answer_stats:
        notify(f"latest: {format_stats(session.answer_stats, session)}")
    generated, read = sum(one.tokens for one in answers), sum(one.prompt_tokens for one in answers)
    cached, seconds = sum(one.cached_tokens for one in answers), sum(one.seconds for one in answers)
    notify(
        f"{plural(len(answers), 'answer')} in {format_duration(seconds)}: "
        f"{plural(generated, 'token')} generated, {plural(read, 'prompt token')}"
    )
    notify(f"{cached:,} prompt tokens were in the cache, which now holds {plural(session.engine.length, 'token')}")
