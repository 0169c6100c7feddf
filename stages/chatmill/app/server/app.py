"""The server: the ASGI application, its start and its shutdown."""

import asyncio
import logging
import socket
import traceback
from copy import deepcopy
from pathlib import Path
from types import TracebackType

import uvicorn
import uvicorn.logging
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from chatmill.app.server import assets, routes, runs, verdicts
from chatmill.app.server.api_errors import (
    HEADER,
    ApiError,
    IgnoredParametersMiddleware,
    handle_api_error,
    handle_exception,
    handle_http_exception,
)
from chatmill.app.server.models import LoadedChat, Models, loaded_chat_routes
from chatmill.app.server.security import SecurityMiddleware

KEEP_ALIVE_SECONDS = 30  # after which an idle connection is closed
MAX_CONNECTIONS = 512  # at once; others are refused with status 503
MAX_HEADER_BYTES = 32_768  # of a request's line and headers


def create_app(
    models: Models,
    known_runs: runs.Runs,
    hosts: list[str],
    origins: list[str],
    api_key: str | None,
    chat: LoadedChat | None = None,
) -> Starlette:
    """The ASGI application: API, runs and pages; `chat` opens in the page."""
    judge = verdicts.Verdicts(known_runs, Path.cwd())
    app = Starlette(
        routes=[
            *routes.routes(models),
            *verdicts.routes(judge),
            *runs.routes(known_runs),
            *loaded_chat_routes(chat),
            *assets.routes(),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False),
            Middleware(SecurityMiddleware, origins=origins, key=api_key),
            Middleware(
                CORSMiddleware,
                allow_origins=origins,
                allow_methods=["GET", "POST"],
                allow_headers=["authorization", "content-type"],
                expose_headers=[HEADER],
            ),
            Middleware(IgnoredParametersMiddleware),
        ],
        exception_handlers={
            ApiError: handle_api_error,
            HTTPException: handle_http_exception,
            ClientDisconnect: handle_disconnect,
            Exception: handle_exception,
        },
    )
    app.router.redirect_slashes = False
    return app


async def handle_disconnect(_: Request, __: Exception) -> Response:
    """Handle ClientDisconnect; the client does not read this response."""
    return ApiError(400, "the client disconnected").response()


class RedactingFormatter(uvicorn.logging.DefaultFormatter):
    """Logs the traceback and type of an exception, but not its message, which may quote a conversation."""

    def formatException(
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        exception_type, _, trace = ei
        return "".join([*traceback.format_tb(trace), exception_type.__name__ if exception_type else "no exception"])


class Server(uvicorn.Server):
    """Uvicorn with a graceful shutdown: running answers get `grace` seconds, then they are ended."""

    def __init__(self, app: ASGIApp, models: Models, *, grace: float, verbose: bool) -> None:
        log_config = deepcopy(uvicorn.config.LOGGING_CONFIG)
        log_config["formatters"]["default"]["()"] = RedactingFormatter
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            limit_concurrency=MAX_CONNECTIONS,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=int(grace) + 5,
            log_config=log_config,
            access_log=verbose,
            log_level=logging.INFO if verbose else logging.ERROR,
            server_header=False,
        )
        super().__init__(config)
        self._models, self._grace = models, grace

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and end the running answers."""
        draining = asyncio.create_task(self._models.drain(self._grace))
        await super().shutdown(sockets)
        await draining


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket bound to an address. Raises ValueError if it cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, so that asyncio sets TCP_NODELAY
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen()  # connections made before the server runs wait in the backlog
    except OSError as error:
        bound.close()
        raise ValueError(f"{host}:{port}: {(error.strerror or '').lower()}: choose another --host or --port") from error
    return bound
