"""A chat in the terminal: a line editor with history, commands, and answers as they are generated."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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

from chatmill.app.terminal.settings import SETTINGS
from chatmill.app.terminal.slash_commands import SLASH_COMMANDS, run_command
from chatmill.app.terminal.terminal_chat import TerminalChat, notify
from chatmill.pipeline.user_errors import USER_ERRORS, error_line

WITH_FILES = ("/load", "/save")


@contextmanager
def use_terminal() -> Iterator[None]:
    """Read and edit at the terminal, also where stdin or stdout is a pipe or a file. Raises ValueError without one."""
    if not any(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise ValueError("there is no terminal to chat in: give a prompt with -p, or through a pipe")
    os.environ.setdefault("PROMPT_TOOLKIT_NO_CPR", "1")  # else a terminal that cannot tell its cursor gets a warning
    terminal_input, terminal_output = create_input(always_prefer_tty=True), create_output(always_prefer_tty=True)
    with create_app_session(input=terminal_input, output=terminal_output):
        yield


def chat_loop(talk: TerminalChat, first_prompt: str | None = None) -> None:
    """Answer the opening, if there is one; then ask and answer until the user leaves."""
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
    if talk.show_notices:
        notify("/help for help, Ctrl-D to leave", dim=True)
    if first_prompt is not None:
        with suppress(KeyboardInterrupt):
            _respond(TerminalChat.ask, talk, first_prompt)
    with suppress(EOFError):
        while True:
            with suppress(KeyboardInterrupt):
                _take_turn(talk, editor)
    if talk.transcript and talk.transcript.file:
        notify(f"saved to {talk.transcript.file}")


def _take_turn(talk: TerminalChat, editor: PromptSession[str]) -> None:
    """Read what the user says and respond to it. Raises EOFError where they leave, KeyboardInterrupt at Ctrl-C."""
    try:
        text = editor.prompt().strip("\n").rstrip()
    except KeyboardInterrupt:
        if not editor.default_buffer.text:
            notify("Ctrl-D or /bye leaves")
        return
    if text in ("exit", "quit"):
        notify(f"/bye or Ctrl-D leaves (/{text} does, too)")
    elif text.startswith("/") and not text.startswith("//"):
        _respond(run_command, talk, text)
    else:
        _respond(TerminalChat.ask, talk, text.removeprefix("/"))


def _respond(respond: Callable[[TerminalChat, str], None], talk: TerminalChat, text: str) -> None:
    """Follow a command, or answer; what goes wrong is told, and the chat goes on."""
    try:
        respond(talk, text)
    except BrokenPipeError:  # nobody reads the answers any more
        raise
    except USER_ERRORS as error:
        notify(error_line(error))


def _keys() -> KeyBindings:
    """Enter sends; Alt-Enter begins a new line, as does Enter after a backslash, which then goes."""
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
    """Commands, and the names of settings and files after the commands that take them."""

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        command, space, argument = document.text_before_cursor.partition(" ")
        if not space:
            found = [name for name in SLASH_COMMANDS if command and name.startswith(command)]
            yield from (Completion(f"{name} ", -len(command)) for name in found)
        elif command in WITH_FILES:
            yield from PathCompleter(expanduser=True).get_completions(Document(argument), event)
        elif command == "/set":
            yield from (Completion(f"{name} ", -len(argument)) for name in SETTINGS if name.startswith(argument))


class _FileHistory(FileHistory):
    """What was typed, in a file: a full disk costs the line's place there, never the line."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def _history() -> History:
    """What was typed in earlier chats, in a file that the user alone may read; where there can be none, none."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
        file = Path(state, "chatmill", "history")
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
    except (OSError, RuntimeError) as error:  # RuntimeError: nobody knows a home folder
        why = error_line(error) if isinstance(error, OSError) else str(error)
        notify(f"{why}: what you type is not remembered for the next chat")
        return InMemoryHistory()
    return _FileHistory(file)
