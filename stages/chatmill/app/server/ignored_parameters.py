"""The response header that names the parameters of a request that were ignored."""

import re
from collections.abc import Sequence

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Ignored-Parameters"
MAX_NAMES, MAX_LENGTH = 20, 40  # names in the header, characters of each
_STATE = "ignored_parameters"


class IgnoredParametersMiddleware:
    """ASGI middleware: adds the header where a handler has called `report_ignored`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application."""

        async def send_with_header(message: Message) -> None:
            names = scope.get("state", {}).get(_STATE)
            if message["type"] == "http.response.start" and names:
                MutableHeaders(scope=message)[HEADER] = header_value(names)
            await send(message)

        await self._app(scope, receive, send_with_header)


def report_ignored(request: Request, names: Sequence[str]) -> None:
    """Name parameters in the header of the response, after those that were named before."""
    setattr(request.state, _STATE, [*getattr(request.state, _STATE, ()), *names])


def header_value(names: Sequence[str]) -> str:
    """The names, in which all but letters, digits, `_`, `.` and `-` is replaced: `user, metadata`."""
    shown = [re.sub(r"[^A-Za-z0-9_.-]", "?", name[:MAX_LENGTH]) for name in names[:MAX_NAMES]]
    return ", ".join(shown) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")
