"""Who may ask, and how much: checked before anything of a request is read."""

import hmac
import os
from collections.abc import Collection, Mapping
from ipaddress import ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chatmill.app.server.api_errors import ApiError

MAX_BODY_BYTES = 2 << 20  # of a request's body
BODY_SECONDS = 30  # for it to arrive
MAX_HEADER_BYTES = 32_768  # of a request's line and headers
PUBLIC_PATHS = ("/", "/runs", "/health")  # without a key: they show nothing but how to ask
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "authorization, content-type",
    "Access-Control-Max-Age": "600",
}


class SecurityMiddleware:
    """Stands before an application: host, origin, key, size of the body, and the headers that protect a browser."""

    def __init__(
        self, app: ASGIApp, *, hosts: Collection[str], origins: Collection[str] = (), key: str | None = None
    ) -> None:
        """`hosts` are the names it answers to, `origins` the other pages' that may ask."""
        self._app, self._hosts, self._origins = app, {host.lower() for host in hosts}, set(origins)
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        allowed = self._allowed_origin(headers)
        guarded = _with_headers(send, _cors(allowed))
        try:
            self._check(scope, headers)
        except ApiError as error:
            await error.response()(scope, receive, guarded)
            return
        if scope["method"] == "OPTIONS" and allowed:
            await _send_no_content(_with_headers(send, _cors(allowed) | PREFLIGHT))
            return
        await self._app(scope, receive, guarded)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raise ApiError unless this may be asked, by this one."""
        host = _host_name(headers.getlist("host"))
        if host not in self._hosts:
            raise ApiError(421, f"the host {host!r:.100} is not known here: name it with --allow-host", code="bad_host")
        origin = headers.get("origin")
        if origin is not None and origin not in self._origins and not self._is_same_origin(scope, origin):
            raise ApiError(
                403, f"the origin {origin!r:.100} may not ask: name it with --allow-origin", code="bad_origin"
            )
        if (
            origin is None
            and headers.get("sec-fetch-site") in ("cross-site", "same-site")
            and scope["path"] not in PUBLIC_PATHS
        ):
            raise ApiError(403, "another site's page may not ask", code="bad_origin")
        if header_bytes(scope) > MAX_HEADER_BYTES:
            raise ApiError(431, f"the headers have over {MAX_HEADER_BYTES:,} bytes", code="too_large")
        if int(headers.get("content-length") or 0) > MAX_BODY_BYTES:
            raise too_large()
        if self._key is not None and scope["method"] != "OPTIONS" and needs_key(scope["path"]):
            scheme, _, given = headers.get("authorization", "").partition(" ")
            same = hmac.compare_digest(given.strip().encode("latin-1"), os.fsencode(self._key))
            if scheme.lower() != "bearer" or not same:
                raise ApiError(401, "the API key is missing, or not the server's", code="invalid_api_key")

    def _is_same_origin(self, scope: Scope, origin: str) -> bool:
        return origin == f"{scope['scheme']}://{Headers(scope=scope).get('host')}"

    def _allowed_origin(self, headers: Headers) -> str | None:
        """The origin of another page that may ask."""
        origin = headers.get("origin")
        return origin if origin in self._origins else None


def header_bytes(scope: Scope) -> int:
    """How long a request's line and headers are, about."""
    address = len(scope["raw_path"]) + len(scope["query_string"])
    return address + sum(len(name) + len(value) for name, value in scope["headers"])


def needs_key(path: str) -> bool:
    """Whether a path shows something of the models, or of what is said to them."""
    is_report = path.startswith("/runs/") and path.endswith("/report")  # a link: its ticket stands for the key
    return path not in PUBLIC_PATHS and not path.startswith("/assets/") and not is_report


def too_large() -> ApiError:
    """A body is longer than any that is read."""
    return ApiError(413, f"the body has over {MAX_BODY_BYTES:,} bytes", code="too_large")


def is_loopback(host: str) -> bool:
    """Whether a host to bind is this machine alone."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _host_name(values: list[str]) -> str:
    """The name in the Host header, without the port; "" where there is none, or several."""
    if len(values) != 1:
        return ""
    name, _, port = values[0].lower().rpartition(":")
    return name if name and port.isdigit() else values[0].lower()


def _cors(origin: str | None) -> dict[str, str]:
    if origin is None:
        return {}
    return {
        "Access-Control-Allow-Origin": origin,
        "Vary": "Origin",
        "Cross-Origin-Resource-Policy": "cross-origin",
    }


def _with_headers(send: Send, more: Mapping[str, str]) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in {**SECURITY_HEADERS, **more}.items():
                headers.setdefault(name, value)
        await send(message)

    return guarded


async def _send_no_content(send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})
