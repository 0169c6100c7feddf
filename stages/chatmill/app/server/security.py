"""Errors, responses that end when the client goes away, and who may ask this server."""

import asyncio
import base64
import binascii
import hmac
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Errors in the format of OpenAI's API.

RETRY_AFTER_SECONDS = 2  # in the Retry-After header of a busy server


class ApiError(Exception):
    """An error response: the HTTP status, a message, and the parameter it is about."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.code = code or ("invalid_value" if status == 400 else None)

    def as_dict(self) -> dict[str, Any]:
        error_type = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": error_type, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if self.status in (429, 503) else {}
        return JSONResponse(self.as_dict(), self.status, headers)


def to_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ValueError):
        return ApiError(500, str(error), code="model_failed")
    return ApiError(503, str(error) or "out of memory", code="out_of_memory")


async def handle_error(request: Request, error: Exception) -> Response:
    """Starlette's handler of all exceptions; it is async because Starlette would call another one in a thread."""
    match error:
        case ApiError():
            return error.response()
        case ClientDisconnect():
            return Response()  # nobody reads it
        case HTTPException():  # no route matches
            return ApiError(error.status_code, f"{request.url.path}: {error.detail.lower()}").response()
        case _:
            return ApiError(500, "internal server error: see the server's log").response()


# Responses that are cancelled when the client disconnects, and server-sent events.

EVENT = b"data: %b\n\n"


class CancellableResponse(Response):
    """A response whose producer, which sends it or returns it, is cancelled when the client disconnects."""

    def __init__(self, respond: Callable[[Send], Awaitable[Response | None]]) -> None:
        super().__init__()
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tasks = [asyncio.ensure_future(each) for each in (self._respond(send), _wait_for_disconnect(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            responded, _ = await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(responded, Exception):
            raise responded
        if isinstance(responded, Response):
            await responded(scope, receive, send)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_events(send: Send, events: AsyncIterator[bytes]) -> None:
    """Send server-sent events, and the one that ends them. An error before the first is raised, a later one is sent."""
    is_started = False

    async def send_event(event: bytes, *, more_body: bool = True) -> None:
        nonlocal is_started
        if not is_started:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            is_started = True
        await send({"type": "http.response.body", "body": EVENT % event, "more_body": more_body})

    try:
        async for event in events:
            await send_event(event)
    except ApiError as error:
        if not is_started:
            raise
        await send_event(json.dumps(error.as_dict()).encode())
    await send_event(b"[DONE]", more_body=False)


# Who may ask this server: the check of origin and API key, and headers that protect a browser.

PUBLIC_PATHS = ("/", "/runs", "/health")  # need no key, as they show nothing of the models
BASIC = 'Basic realm="chatmill: any name, and the API key as password"'
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class SecurityMiddleware:
    """ASGI middleware: refuses pages of other sites and requests without the key; adds headers to responses."""

    def __init__(self, app: ASGIApp, *, origins: Collection[str] = (), key: str | None = None) -> None:
        """`origins` are the other sites whose pages are allowed."""
        self._app, self._origins, self._key = app, set(origins), key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if "etag" in headers:  # a page, script or style: a browser asks whether it has changed
                    headers.setdefault("Cache-Control", "no-cache")
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self._check(scope)
        except ApiError as error:
            response = error.response()
            if error.status == 401:
                # A browser asks for a password where it opens a page, as a report. Scripts have the key, or ask for it.
                opens = Headers(scope=scope).get("sec-fetch-mode") == "navigate"
                response.headers["WWW-Authenticate"] = BASIC if opens else "Bearer"
            await response(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _check(self, scope: Scope) -> None:
        headers, path = Headers(scope=scope), scope["path"]
        # Browsers name the origin of a page's script, and of its forms and links at least that they are another site's.
        origin = headers.get("origin")
        own = f"{scope['scheme']}://{headers.get('host')}"
        if origin is not None and origin != own and origin not in self._origins:
            message = f"requests from the origin {origin!r:.100} are not allowed: allow it with --allow-origin"
            raise ApiError(403, message, code="bad_origin")
        from_other_site = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if origin is None and from_other_site and path not in PUBLIC_PATHS:
            raise ApiError(403, "requests from another site's page are not allowed", code="bad_origin")
        if self._key is None or path in PUBLIC_PATHS or path.startswith("/assets/"):
            return
        if not hmac.compare_digest(_given_key(headers).encode("latin-1"), os.fsencode(self._key)):
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")


def _given_key(headers: Headers) -> str:
    """The key as a bearer token; or as the password that a browser asks for, where it opens a report."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return given.strip()
    try:
        return base64.b64decode(given).decode("latin-1").partition(":")[2]
    except binascii.Error:
        return ""
