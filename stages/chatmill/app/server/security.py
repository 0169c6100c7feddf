"""Who may ask this server: the check of origin and API key, and headers that protect a browser.

Hosts are checked by starlette's TrustedHostMiddleware, so that no page reaches a local server by a name of its own
(DNS rebinding). TLS and limits for the open internet are the business of a proxy before it.
"""

import base64
import binascii
import hmac
import os
from collections.abc import Collection
from ipaddress import ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chatmill.app.server.api_errors import ApiError

PUBLIC_PATHS = ("/", "/runs", "/health")  # need no key, as they show nothing of the models
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
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self._check(scope)
        except ApiError as error:
            await error.response()(scope, receive, send_with_headers)
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


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
