"""Checks of host, origin, API key and size, before the body of a request is read."""

import hmac
import os
from collections.abc import Collection, Mapping
from ipaddress import IPv6Address, ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chatmill.app.server.api_errors import ApiError

MAX_BODY_BYTES = 2 << 20  # of a request's body
BODY_SECONDS = 10  # for it to arrive, and one more for each BODY_RATE bytes that have arrived
BODY_RATE = 512  # bytes per second
MAX_HEADER_BYTES = 32_768  # of a request's line and headers
PUBLIC_PATHS = ("/", "/runs", "/health")  # need no key, as they show nothing of the models
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; manifest-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
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
    """ASGI middleware: checks host, origin, key and size of a request, and adds headers that protect a browser."""

    def __init__(
        self, app: ASGIApp, *, hosts: Collection[str], origins: Collection[str] = (), key: str | None = None
    ) -> None:
        """`hosts` are the allowed values of the Host header, `origins` the other sites whose pages are allowed."""
        self._app, self._hosts, self._origins = app, {host.lower() for host in hosts}, set(origins)
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        allowed = self._allowed_origin(headers)
        guarded = _with_headers(send, _cors(allowed) | _closing(headers))
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
        """Raise ApiError if the request is not allowed."""
        host = _host_name(headers.getlist("host"))
        if host not in self._hosts:
            raise ApiError(421, f"unknown host {host!r:.100}: allow it with --allow-host", code="bad_host")
        origin = headers.get("origin")
        if origin is not None and origin not in self._origins and not self._is_same_origin(scope, origin):
            message = f"requests from the origin {origin!r:.100} are not allowed: allow it with --allow-origin"
            raise ApiError(403, message, code="bad_origin")
        if (
            origin is None
            and headers.get("sec-fetch-site") in ("cross-site", "same-site")
            and scope["path"] not in PUBLIC_PATHS
        ):
            raise ApiError(403, "requests from another site's page are not allowed", code="bad_origin")
        if (size := header_bytes(scope)) > MAX_HEADER_BYTES:
            message = f"headers: expected at most {MAX_HEADER_BYTES:,} bytes, got {size:,}"
            raise ApiError(431, message, code="too_large")
        if int(headers.get("content-length") or 0) > MAX_BODY_BYTES:
            raise too_large()
        if self._key is not None and scope["method"] != "OPTIONS" and needs_key(scope["path"]):
            scheme, _, given = headers.get("authorization", "").partition(" ")
            same = hmac.compare_digest(given.strip().encode("latin-1"), os.fsencode(self._key))
            if scheme.lower() != "bearer" or not same:
                raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")

    def _is_same_origin(self, scope: Scope, origin: str) -> bool:
        return origin == f"{scope['scheme']}://{Headers(scope=scope).get('host')}"

    def _allowed_origin(self, headers: Headers) -> str | None:
        """The origin of the request if it is one of the allowed ones."""
        origin = headers.get("origin")
        return origin if origin in self._origins else None


def header_bytes(scope: Scope) -> int:
    """The approximate size of a request's line and headers."""
    address = len(scope["raw_path"]) + len(scope["query_string"])
    return address + sum(len(name) + len(value) for name, value in scope["headers"])


def needs_key(path: str) -> bool:
    """Whether a path shows models, runs or conversations."""
    is_report = path.startswith("/runs/") and path.endswith("/report")  # protected by the ticket in its link
    return path not in PUBLIC_PATHS and not path.startswith("/assets/") and not is_report


def too_large() -> ApiError:
    """The error for a body that is too long."""
    return ApiError(413, f"body: expected at most {MAX_BODY_BYTES:,} bytes", code="too_large")


def canonical_address(host: str) -> str:
    """The one spelling of an IP address; IPv4 also where it is mapped to IPv6. Names stay as they are."""
    try:
        address = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def client_network(host: str) -> str:
    """The addresses of which one client may have all: an IPv4 address, or the 64 bits of an IPv6 network."""
    address = canonical_address(host)
    return str(IPv6Address(int(IPv6Address(address)) >> 64 << 64)) if ":" in address else address


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    try:
        return ip_address(canonical_address(host)).is_loopback
    except ValueError:
        return host == "localhost"


def _host_name(values: list[str]) -> str:
    """The name in the Host header, without the port; "" unless there is exactly one such header."""
    if len(values) != 1:
        return ""
    name, _, port = values[0].lower().rpartition(":")
    return name if name and port.isdigit() else values[0].lower()


def _cors(origin: str | None) -> dict[str, str]:
    if origin is None:
        return {}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": "x-ignored-parameters",
        "Vary": "Origin",
        "Cross-Origin-Resource-Policy": "cross-origin",
    }


def _closing(headers: Headers) -> dict[str, str]:
    """The header that ends a connection after a body in chunks, whose last line h11 reads leniently."""
    return {"Connection": "close"} if "transfer-encoding" in headers else {}


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
