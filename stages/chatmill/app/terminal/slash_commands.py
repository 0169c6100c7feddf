"""Commands of a chat: lines that begin with a slash."""

import re
from collections.abc import Callable
from typing import NamedTuple

from chatmill.app.terminal.saved_chats import read_numbered_chat, save_chat
from chatmill.app.terminal.terminal_chat import (
    EMPTY,
    SETTINGS,
    TerminalChat,
    change_setting,
    describe_session,
    format_setting,
    format_stats,
    notify,
)
from chatmill.app.terminal.tokens import (
    format_duration,
    plural,
    show_likeliest,
    show_probabilities,
    show_text_tokens,
    show_tokens,
)
from chatmill.conversation import Message

KEYS = """Enter sends; Alt-Enter, or a backslash before Enter, inserts a newline. Tab
completes, Up recalls earlier input, Ctrl-C stops an answer, Ctrl-D leaves.
To send a message that begins with a slash, type two."""
ALIASES = {"/exit": "/bye", "/quit": "/bye", "/?": "/help", "/retry": "/regenerate"}  # in other programs
_SPEAKERS = {"system": "system", "user": "you", "assistant": "model"}


class SlashCommand(NamedTuple):
    """A command: its arguments, its purpose for /help, and the function that runs it."""

    arguments: str
    purpose: str
    run: Callable[[TerminalChat, str], None]


def run_command(chat: TerminalChat, line: str) -> None:
    """Run a command. Raises ValueError where it is unknown or fails, and EOFError to leave."""
    name, *rest = line.split(maxsplit=1)
    name = ALIASES.get(name, name)
    if name not in SLASH_COMMANDS:
        raise ValueError(f"unknown command {name}: /help lists them; to send a message that begins with /, type //")
    if rest and not SLASH_COMMANDS[name].arguments:
        raise ValueError(f"{name}: expected no arguments, got {rest[0]!r}")
    SLASH_COMMANDS[name].run(chat, "".join(rest))


def _leave(chat: TerminalChat, _: str) -> None:
    raise EOFError


def _list_commands(chat: TerminalChat, _: str) -> None:
    for name, command in SLASH_COMMANDS.items():
        notify(f"{f'{name} {command.arguments}':<20} {command.purpose}")
    notify(KEYS)


def _clear(chat: TerminalChat, _: str) -> None:
    chat.start_conversation()
    chat.session.clear()
    notify("the conversation was cleared" + (", except for the system prompt" if chat.session.system else ""))


def _system(chat: TerminalChat, text: str) -> None:
    if text:
        chat.session.system = "" if text == EMPTY else text
    prompt = chat.session.system
    notify(f"system prompt: {prompt}" if prompt else "no system prompt")


def _change(chat: TerminalChat, argument: str) -> None:
    name, *value = re.split(r"\s*=\s*|\s+", argument, maxsplit=1)
    name = name.replace("-", "_")
    if value:
        change_setting(chat.session, name, value[0])
    for one in [name] if name else SETTINGS:
        notify(f"{one:<18} {format_setting(chat.session, one)}")


def _show_conversation(chat: TerminalChat, _: str) -> None:
    if not chat.session.conversation:
        notify("the conversation is empty")
    num_dropped = chat.session.num_dropped
    for message in chat.session.conversation:
        if message.role != "system" and num_dropped:
            num_dropped -= 1
            notify(f"(dropped) {_format_message(message)}", dim=True)
        else:
            notify(_format_message(message))


def _format_message(message: Message) -> str:
    marks = {"text": "{}", "call": "[{}", "output": " = {}] "}
    text = "".join(marks[part.kind].format(part.text) for part in message.parts)
    return f"{_SPEAKERS[message.role]}: {text}"


def _save_chat(chat: TerminalChat, name: str) -> None:
    notify(f"saved to {save_chat(chat.session.conversation, name or './')}")


def _load_chat(chat: TerminalChat, argument: str) -> None:
    if not argument:
        raise ValueError("/load: expected a file, and its conversation's number if it has several: /load FILE 2")
    notify(chat.load(*read_numbered_chat(argument)))


def _regenerate(chat: TerminalChat, _: str) -> None:
    before = chat.session.conversation
    if chat.session.sampling.temperature == 0 and any(message.role == "user" for message in before):
        notify("at temperature 0 the answer is always the same: try /set temperature 0.8")
    try:
        chat.show_answer(chat.session.regenerate())
    finally:
        if len(chat.session.conversation) < len(before):
            chat.session.set_conversation(before)
            chat.update_transcript()


def _undo(chat: TerminalChat, _: str) -> None:
    if (question := chat.session.undo()) is None:
        raise ValueError("there is no question to undo")
    chat.update_transcript()
    notify(f"removed, with its answer: {question}")


def _tokens(chat: TerminalChat, text: str) -> None:
    if text:
        show_text_tokens(text, chat.session.tokenizer)
        return
    if not any(message.role == "assistant" for message in chat.session.conversation):
        raise ValueError("there is no answer yet: ask something, or pass a text, as in /tokens Hello")
    show_tokens(chat.session)


def _explain(chat: TerminalChat, number: str) -> None:
    if not number:
        show_probabilities(chat.session)
    elif number.isdecimal():
        show_likeliest(chat.session, int(number))
    else:
        raise ValueError(f"/why: expected the number of a token of the latest answer, got {number!r}")


def _statistics(chat: TerminalChat, _: str) -> None:
    session = chat.session
    notify(describe_session(session))
    if not chat.answer_stats:
        notify("no answer yet")
        return
    generated = sum(one.tokens for one in chat.answer_stats)
    prompt_tokens = sum(one.prompt_tokens for one in chat.answer_stats)
    cached, seconds = sum(one.cached_tokens for one in chat.answer_stats), sum(one.seconds for one in chat.answer_stats)
    if session.answer_stats:
        notify(f"latest: {format_stats(session.answer_stats, session)}")
    notify(
        f"{plural(len(chat.answer_stats), 'answer')} in {format_duration(seconds)}: "
        f"{plural(generated, 'token')} generated, {plural(prompt_tokens, 'prompt token')}"
    )
    notify(f"{cached:,} prompt tokens were in the cache, which now holds {plural(session.engine.length, 'token')}")


SLASH_COMMANDS = {
    "/help": SlashCommand("", "show this list", _list_commands),
    "/clear": SlashCommand("", "remove all messages except the system prompt", _clear),
    "/system": SlashCommand("[TEXT]", f"show the system prompt, or change it; {EMPTY} removes it", _system),
    "/set": SlashCommand("[NAME [VALUE]]", "show settings, such as temperature, or change one", _change),
    "/show": SlashCommand("", "show the conversation", _show_conversation),
    "/save": SlashCommand("[FILE]", "save the chat as training data; FILE may be a folder", _save_chat),
    "/load": SlashCommand("FILE [N]", "continue a saved chat; N is its number in the file", _load_chat),
    "/regenerate": SlashCommand("", "answer the latest question again", _regenerate),
    "/undo": SlashCommand("", "remove the latest question and its answer", _undo),
    "/tokens": SlashCommand("[TEXT]", "show tokens and ids of the latest exchange, or of TEXT", _tokens),
    "/why": SlashCommand("[N]", "show probabilities of the answer, or likely tokens at N", _explain),
    "/stats": SlashCommand("", "show the model, and numbers of tokens and speeds", _statistics),
    "/bye": SlashCommand("", "leave", _leave),
}
