"""The saved chat with which the chat page opens, at the address that `chatmill serve --load FILE` prints."""

import hashlib
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatmill.app.terminal.saved_chats import read_numbered_chat, to_json_line
from chatmill.app.terminal.terminal_chat import notify


class LoadedChat(NamedTuple):
    """A chat as a line of `messages`; a browser saves it under its id, the same for the same messages."""

    id: str  # 24 hexadecimal digits, as of every chat in a browser
    line: str


def load_chat(argument: str) -> LoadedChat:
    """Read the chat of `FILE` or `FILE N`, as the terminal does. Raises ValueError where it cannot be read."""
    _, conversation = read_numbered_chat(argument)
    if conversation[-1].role == "user":
        notify("the last message has no answer and was dropped")
    line = to_json_line(conversation)
    return LoadedChat(hashlib.sha256(line.encode()).hexdigest()[:24], line)


def routes(chat: LoadedChat | None) -> list[Route]:
    """The route of the chat, if there is one."""
    if chat is None:
        return []

    async def show(_: Request) -> Response:
        return Response(chat.line, media_type="application/jsonl")

    return [Route(f"/chats/{chat.id}", show)]
