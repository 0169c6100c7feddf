"""Responses that are cancelled when the client disconnects, and server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

PING_SECONDS = 10  # after which a comment is sent to keep a silent connection alive
EVENT = b"data: %b\n\n"


class CancellableResponse(Response):
    """A response whose producer is cancelled when the client disconnects."""

    def __init__(self, respond: Callable[[Send], Awaitable[None]]) -> None:
        super().__init__()
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the producer until it ends or the client disconnects."""
        responding = asyncio.ensure_future(self._respond(send))
        disconnect = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait({responding, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            unfinished = [task for task in (responding, disconnect) if not task.done()]
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
        if responding.done() and not responding.cancelled():
            responding.result()


async def send_events(
    send: Send,
    events: AsyncIterator[bytes | None],
    *,
    content_type: bytes = b"text/event-stream; charset=utf-8",
    layout: bytes = EVENT,
    ping: bytes = b": still here\n\n",
    last: bytes = EVENT % b"[DONE]",
) -> None:
    """Send server-sent events, or events in another layout, and what ends them; None is sent as a ping."""
    headers = [(b"content-type", content_type), (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    async for event in events:
        await send({"type": "http.response.body", "body": ping if event is None else layout % event, "more_body": True})
    await send({"type": "http.response.body", "body": last, "more_body": False})


async def send_response(send: Send, response: Response) -> None:
    """Send a prepared response."""
    await response({"type": "http"}, _receive_disconnect, send)


async def _receive_disconnect() -> Message:
    """An ASGI receive channel that is disconnected."""
    return {"type": "http.disconnect"}


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
