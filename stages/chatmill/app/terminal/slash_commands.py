"""What a line that begins with a slash does in a chat."""

import re
from collections.abc import Callable
from typing import NamedTuple

from chatmill.app.terminal.saved_chats import path_of, read_chat, save
from chatmill.app.terminal.settings import NONE, SETTINGS, assign, shown
from chatmill.app.terminal.talk import Talk, described, notice, took
from chatmill.app.terminal.token_display import show_tokens
from chatmill.app.terminal.words import duration, plural
from chatmill.conversation.chatml import Message

KEYS = """Enter sends; Alt-Enter, or a backslash before Enter, begins a new line. Tab
completes, Up recalls, Ctrl-C stops an answer, Ctrl-D leaves. A text that begins
with a slash is sent with two."""
OTHER_NAMES = {"/exit": "/bye", "/quit": "/bye", "/?": "/help", "/retry": "/regenerate"}  # in other programs
_SPEAKERS = {"system": "system", "user": "you", "assistant": "model"}


class Command(NamedTuple):
    """What a command takes, and does."""

    arguments: str
    purpose: str
    run: Callable[[Talk, str], None]


def follow(talk: Talk, line: str) -> None:
    """Follow a command. Raises ValueError where it is none, or cannot be followed, and EOFError to leave."""
    name, *rest = line.split(maxsplit=1)
    name = OTHER_NAMES.get(name, name)
    if name not in COMMANDS:
        raise ValueError(f"unknown command {name}: /help lists them (// begins a text with a slash)")
    if rest and not COMMANDS[name].arguments:
        raise ValueError(f"{name} takes nothing after it, but there is {rest[0]!r}")
    COMMANDS[name].run(talk, "".join(rest))


def _leave(talk: Talk, _: str) -> None:
    raise EOFError


def _list_commands(talk: Talk, _: str) -> None:
    for name, command in COMMANDS.items():
        notice(f"{f'{name} {command.arguments}':<20} {command.purpose}")
    notice(KEYS)


def _clear(talk: Talk, _: str) -> None:
    talk.turn_page()
    talk.session.clear()
    notice("the conversation is forgotten" + (", but for the system prompt" if talk.session.system else ""))


def _system(talk: Talk, text: str) -> None:
    if text:
        talk.session.system = "" if text == NONE else text
    prompt = talk.session.system
    notice(f"system prompt: {prompt}" if prompt else "no system prompt")


def _change(talk: Talk, argument: str) -> None:
    name, *value = re.split(r"\s*=\s*|\s+", argument, maxsplit=1)
    name = name.replace("-", "_")
    if value:
        assign(talk.session, name, value[0])
    for one in [name] if name else SETTINGS:
        notice(f"{one:<18} {shown(talk.session, one)}")


def _show_conversation(talk: Talk, _: str) -> None:
    if not talk.session.conversation:
        notice("nothing was said yet")
    left_out = talk.session.forgotten
    for message in talk.session.conversation:
        if message.role != "system" and left_out:
            left_out -= 1
            notice(f"(left out) {_spoken(message)}", quiet=True)
        else:
            notice(_spoken(message))


def _spoken(message: Message) -> str:
    """A message with its speaker; calls of the calculator in brackets, with what came out."""
    marks = {"text": "{}", "call": "[{}", "output": " = {}] "}
    text = "".join(marks[part.kind].format(part.text) for part in message.parts)
    return f"{_SPEAKERS[message.role]}: {text}"


def _save_chat(talk: Talk, name: str) -> None:
    notice(f"saved to {save(talk.session.conversation, name or './')}")


def _load_chat(talk: Talk, argument: str) -> None:
    if not argument:
        raise ValueError("/load what? Name a file, and which conversation of it, if not the first: /load FILE 2")
    name, _, number = argument.rpartition(" ")
    if not (name and number.isdecimal()) or path_of(argument).exists():
        name, number = argument, "1"
    conversation = read_chat(path_of(name), max(1, int(number)))
    if conversation[-1].role == "user":
        *conversation, _ = conversation
        notice("its last message has no answer, and is left out")
    talk.turn_page()
    talk.session.load(conversation)
    notice(f"{name}: {plural(len(conversation), 'message')}, which /show prints: go on")


def _regenerate(talk: Talk, _: str) -> None:
    before = talk.session.conversation
    if talk.session.sampling.temperature == 0 and before:
        notice("at temperature 0 an answer is always the same: /set temperature 0.8 for others")
    try:
        talk.say(talk.session.regenerate())
    finally:
        if len(talk.session.conversation) < len(before):
            talk.session.load(before)
            talk.write_down()


def _undo(talk: Talk, _: str) -> None:
    if (question := talk.session.undo()) is None:
        raise ValueError("there is no question to forget")
    talk.write_down()
    notice(f"forgotten, with its answer: {question}")


def _tokens(talk: Talk, _: str) -> None:
    show_tokens(talk.session)


def _statistics(talk: Talk, _: str) -> None:
    session = talk.session
    notice(described(session))
    if not talk.answers:
        notice("no answer yet")
        return
    said, read = sum(one.tokens for one in talk.answers), sum(one.prompt_tokens for one in talk.answers)
    cached, seconds = sum(one.cached_tokens for one in talk.answers), sum(one.seconds for one in talk.answers)
    if session.answer:
        notice(f"latest: {took(session.answer, session)}")
    notice(f"{plural(len(talk.answers), 'answer')} in {duration(seconds)}: {plural(said, 'token')} said, {read:,} read")
    notice(f"{cached:,} of those read were in the cache; it now holds {session.engine.length:,}")


COMMANDS = {
    "/help": Command("", "this list", _list_commands),
    "/clear": Command("", "forget the conversation, but for the system prompt", _clear),
    "/system": Command("[TEXT]", f"show the system prompt, or change it; {NONE} takes it away", _system),
    "/set": Command("[NAME [VALUE]]", "show settings, such as temperature, or change one", _change),
    "/show": Command("", "the conversation", _show_conversation),
    "/save": Command("[FILE]", "the conversation as training data; FILE may be a folder", _save_chat),
    "/load": Command("FILE [N]", "go on from a conversation; N is which one of several", _load_chat),
    "/regenerate": Command("", "answer the latest question once more", _regenerate),
    "/undo": Command("", "forget the latest question and its answer", _undo),
    "/tokens": Command("", "the tokens of the latest exchange, with their ids", _tokens),
    "/stats": Command("", "the model, and what the answers took", _statistics),
    "/bye": Command("", "leave", _leave),
}
