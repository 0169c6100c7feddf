"""What a line that begins with a slash does in a chat."""

import re
from collections.abc import Callable
from typing import NamedTuple

from chatmill.app.terminal.formatting import format_duration, plural
from chatmill.app.terminal.saved_chats import expand_path, read_chat, save_chat
from chatmill.app.terminal.settings import EMPTY, SETTINGS, change_setting, format_setting
from chatmill.app.terminal.terminal_chat import TerminalChat, describe_session, format_stats, notify
from chatmill.app.terminal.token_display import show_tokens
from chatmill.conversation.chatml import Message

KEYS = """Enter sends; Alt-Enter, or a backslash before Enter, begins a new line. Tab
completes, Up recalls, Ctrl-C stops an answer, Ctrl-D leaves. A text that begins
with a slash is sent with two."""
ALIASES = {"/exit": "/bye", "/quit": "/bye", "/?": "/help", "/retry": "/regenerate"}  # in other programs
_SPEAKERS = {"system": "system", "user": "you", "assistant": "model"}


class SlashCommand(NamedTuple):
    """What a command takes, and does."""

    arguments: str
    purpose: str
    run: Callable[[TerminalChat, str], None]


def run_command(talk: TerminalChat, line: str) -> None:
    """Follow a command. Raises ValueError where it is none, or cannot be followed, and EOFError to leave."""
    name, *rest = line.split(maxsplit=1)
    name = ALIASES.get(name, name)
    if name not in SLASH_COMMANDS:
        raise ValueError(f"unknown command {name}: /help lists them (// begins a text with a slash)")
    if rest and not SLASH_COMMANDS[name].arguments:
        raise ValueError(f"{name} takes nothing after it, but there is {rest[0]!r}")
    SLASH_COMMANDS[name].run(talk, "".join(rest))


def _leave(talk: TerminalChat, _: str) -> None:
    raise EOFError


def _list_commands(talk: TerminalChat, _: str) -> None:
    for name, command in SLASH_COMMANDS.items():
        notify(f"{f'{name} {command.arguments}':<20} {command.purpose}")
    notify(KEYS)


def _clear(talk: TerminalChat, _: str) -> None:
    talk.start_conversation()
    talk.session.clear()
    notify("the conversation is forgotten" + (", but for the system prompt" if talk.session.system else ""))


def _system(talk: TerminalChat, text: str) -> None:
    if text:
        talk.session.system = "" if text == EMPTY else text
    prompt = talk.session.system
    notify(f"system prompt: {prompt}" if prompt else "no system prompt")


def _change(talk: TerminalChat, argument: str) -> None:
    name, *value = re.split(r"\s*=\s*|\s+", argument, maxsplit=1)
    name = name.replace("-", "_")
    if value:
        change_setting(talk.session, name, value[0])
    for one in [name] if name else SETTINGS:
        notify(f"{one:<18} {format_setting(talk.session, one)}")


def _show_conversation(talk: TerminalChat, _: str) -> None:
    if not talk.session.conversation:
        notify("nothing was said yet")
    left_out = talk.session.num_dropped
    for message in talk.session.conversation:
        if message.role != "system" and left_out:
            left_out -= 1
            notify(f"(left out) {_format_message(message)}", dim=True)
        else:
            notify(_format_message(message))


def _format_message(message: Message) -> str:
    """A message with its speaker; calls of the calculator in brackets, with what came out."""
    marks = {"text": "{}", "call": "[{}", "output": " = {}] "}
    text = "".join(marks[part.kind].format(part.text) for part in message.parts)
    return f"{_SPEAKERS[message.role]}: {text}"


def _save_chat(talk: TerminalChat, name: str) -> None:
    notify(f"saved to {save_chat(talk.session.conversation, name or './')}")


def _load_chat(talk: TerminalChat, argument: str) -> None:
    if not argument:
        raise ValueError("/load what? Name a file, and which conversation of it, if not the first: /load FILE 2")
    name, _, number = argument.rpartition(" ")
    if not (name and number.isdecimal()) or expand_path(argument).exists():
        name, number = argument, "1"
    conversation = read_chat(expand_path(name), max(1, int(number)))
    if conversation[-1].role == "user":
        *conversation, _ = conversation
        notify("its last message has no answer, and is left out")
    talk.start_conversation()
    talk.session.set_conversation(conversation)
    notify(f"{name}: {plural(len(conversation), 'message')}, which /show prints: go on")


def _regenerate(talk: TerminalChat, _: str) -> None:
    before = talk.session.conversation
    if talk.session.sampling.temperature == 0 and before:
        notify("at temperature 0 an answer is always the same: /set temperature 0.8 for others")
    try:
        talk.show_answer(talk.session.regenerate())
    finally:
        if len(talk.session.conversation) < len(before):
            talk.session.set_conversation(before)
            talk.update_transcript()


def _undo(talk: TerminalChat, _: str) -> None:
    if (question := talk.session.undo()) is None:
        raise ValueError("there is no question to forget")
    talk.update_transcript()
    notify(f"forgotten, with its answer: {question}")


def _tokens(talk: TerminalChat, _: str) -> None:
    show_tokens(talk.session)


def _statistics(talk: TerminalChat, _: str) -> None:
    session = talk.session
    notify(describe_session(session))
    if not talk.answer_stats:
        notify("no answer yet")
        return
    generated, prompt_tokens = (
        sum(one.tokens for one in talk.answer_stats),
        sum(one.prompt_tokens for one in talk.answer_stats),
    )
    cached, seconds = sum(one.cached_tokens for one in talk.answer_stats), sum(one.seconds for one in talk.answer_stats)
    if session.answer_stats:
        notify(f"latest: {format_stats(session.answer_stats, session)}")
    notify(
        f"{plural(len(talk.answer_stats), 'answer')} in {format_duration(seconds)}: "
        f"{plural(generated, 'token')} said, {prompt_tokens:,} read"
    )
    notify(f"{cached:,} of those read were in the cache; it now holds {session.engine.length:,}")


SLASH_COMMANDS = {
    "/help": SlashCommand("", "this list", _list_commands),
    "/clear": SlashCommand("", "forget the conversation, but for the system prompt", _clear),
    "/system": SlashCommand("[TEXT]", f"show the system prompt, or change it; {EMPTY} takes it away", _system),
    "/set": SlashCommand("[NAME [VALUE]]", "show settings, such as temperature, or change one", _change),
    "/show": SlashCommand("", "the conversation", _show_conversation),
    "/save": SlashCommand("[FILE]", "the conversation as training data; FILE may be a folder", _save_chat),
    "/load": SlashCommand("FILE [N]", "go on from a conversation; N is which one of several", _load_chat),
    "/regenerate": SlashCommand("", "answer the latest question once more", _regenerate),
    "/undo": SlashCommand("", "forget the latest question and its answer", _undo),
    "/tokens": SlashCommand("", "the tokens of the latest exchange, with their ids", _tokens),
    "/stats": SlashCommand("", "the model, and what the answers took", _statistics),
    "/bye": SlashCommand("", "leave", _leave),
}
