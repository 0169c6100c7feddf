"""The chat in the terminal: a line editor with history, slash commands, and answers as they are generated."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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

from chatmill.app.terminal.slash_commands import SLASH_COMMANDS, run_command
from chatmill.app.terminal.terminal_chat import SETTINGS, TerminalChat, notify
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
    """Answer the first prompt, if there is one; then read and answer until the user leaves."""
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
