"""The server: the endpoints of its API, its pages, its start and its shutdown."""

import asyncio
import logging
import mimetypes
import secrets
import socket
import traceback
from collections.abc import Awaitable, Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
import uvicorn.logging
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Send

from chatmill.app.server import runs
from chatmill.app.server.answers import Answer, JsonObject, job_response
from chatmill.app.server.models import Model, Models
from chatmill.app.server.requests import (
    ChatRequest,
    CompletionRequest,
    ModelRequest,
    Prompt,
    TokenizeRequest,
    TokensRequest,
    chat_prompt,
    check_ids,
    check_length,
    parse,
    text_prompt,
    tokenize_prompt,
)
from chatmill.app.server.scheduler import GenerationConfig, LogprobsJob
from chatmill.app.server.security import ApiError, SecurityMiddleware, handle_error, to_api_error
from chatmill.app.terminal.tokens import token_of
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer

# The pages and their scripts and styles: files of the package.

STATIC = Path(__file__).parent / "static"
PAGES = {"/": STATIC / "chat/chat.html", "/runs": STATIC / "runs/runs.html"}
for suffix in (".js", ".mjs"):
    mimetypes.add_type("text/javascript", suffix)  # some systems have other types, with which browsers run no script


async def send_page(request: Request) -> Response:
    return FileResponse(PAGES[request.url.path])


# The endpoints for tokens: ids of texts, and log probabilities.

TOP_LOGPROBS = 5  # the likeliest tokens that /tokens lists for each position
MAX_LOGITS = 1 << 26  # of a text, which are held at once: 256 MB


async def tokenize(models: Models, request: Request) -> Response:
    """The ids of a text or of a conversation."""
    parameters = await parse(request, TokenizeRequest)
    model = await models.get(parameters.model)
    ids = await asyncio.to_thread(tokenize_prompt, model, parameters)
    return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": model.context})


async def token_logprobs(models: Models, request: Request) -> Response:
    """Each token of a text, its log probability and the likeliest tokens at its position."""
    parameters = await parse(request, TokensRequest)
    model = await models.get(parameters.model)
    check_ids(model, parameters.ids, model.loaded.engine.vocab_size, "ids")
    check_length(parameters.ids, min(model.context, MAX_LOGITS // model.loaded.engine.vocab_size), "ids")
    job = LogprobsJob(parameters.ids, TOP_LOGPROBS, models.options.time_limit)

    async def respond(_: Send) -> Response:
        results = [result async for batch in job.results.batches() for result in batch]
        if job.error:
            raise to_api_error(job.error)
        tokenizer = model.loaded.tokenizer
        entries = [token_entry(parameters.ids[0], None, tokenizer) | {"top": []}]  # which nothing precedes
        for token, logprob, top_logprobs in results:
            top = [token_entry(i, value, tokenizer) for i, value in top_logprobs]
            entries.append(token_entry(token, logprob, tokenizer) | {"top": top})
        return JSONResponse({"tokens": entries})

    return job_response(model, job, respond)


def token_entry(token: int, logprob: float | None, tokenizer: ChatTokenizer) -> JsonObject:
    """An entry of /tokens: a control token has its name; an id that the tokenizer lacks has no text."""
    known = token_of(token, tokenizer)
    name = known.content.decode("utf-8", "replace")
    return {
        "id": token,
        "text": "" if known.is_control else name,
        "bytes": [] if known.is_control else list(known.content),
        "control": (name or f"{token}") if known.is_control else None,
        "logprob": logprob,
    }


# The endpoints of OpenAI's API for answers and models.

AnswerRequest = TypeVar("AnswerRequest", ChatRequest, CompletionRequest)


async def create_chat_completion(models: Models, request: Request) -> Response:
    """Answer a conversation."""
    return await answer(models, request, ChatRequest, chat_prompt)


async def create_completion(models: Models, request: Request) -> Response:
    """Continue a text."""
    return await answer(models, request, CompletionRequest, text_prompt)


async def answer(
    models: Models,
    request: Request,
    request_type: type[AnswerRequest],
    prompt_of: Callable[[Model, AnswerRequest, int], Prompt],
) -> Response:
    """Answer a prompt, with the server's defaults for the parameters that the request leaves out."""
    parameters = await parse(request, request_type)
    model, options, limit = await models.get(parameters.model), models.options, parameters.token_limit
    sampling = parameters.sampling(options.sampling, secrets.randbits(32))
    max_tokens = options.max_tokens if limit is None else limit if limit > 0 else model.context
    prompt = await asyncio.to_thread(prompt_of, model, parameters, max_tokens)
    prefix = prompt.answer_prefix
    config = GenerationConfig(sampling, max_tokens, parameters.stops, parameters.num_logprobs, prefix)
    return Answer(model, parameters, prompt, config, options.time_limit).response()


async def health(_: Models, __: Request) -> Response:
    """The server is running."""
    return JSONResponse({"status": "ok"})


async def list_models(models: Models, _: Request) -> Response:
    """All models."""
    return JSONResponse({"object": "list", "data": [models.describe(name) for name in models.all_names()]})


async def show_model(models: Models, request: Request) -> Response:
    """One model."""
    models.check_name(request.path_params["name"])
    return JSONResponse(models.describe(request.path_params["name"]))


# The routes of all endpoints, and their description as /openapi.json.

Handler = Callable[[Models, Request], Awaitable[Response]]


# the handler of each endpoint, and the type of its body; None for a GET
ENDPOINTS: dict[str, tuple[Handler, type[ModelRequest] | None]] = {
    "/v1/chat/completions": (create_chat_completion, ChatRequest),
    "/v1/completions": (create_completion, CompletionRequest),
    "/tokenize": (tokenize, TokenizeRequest),
    "/tokens": (token_logprobs, TokensRequest),
    "/health": (health, None),
    "/v1/models": (list_models, None),
    "/v1/models/{name:path}": (show_model, None),
}


def openapi() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for path, (handle, request_type) in ENDPOINTS.items():
        operation: dict[str, Any] = {"summary": handle.__doc__, "responses": {"200": {"description": "the result"}}}
        if "{name" in path:
            operation["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
        if request_type:
            body = {"schema": {"$ref": f"#/components/schemas/{request_type.__name__}"}}
            operation["requestBody"] = {"required": True, "content": {"application/json": body}}
        paths[path.replace(":path", "")] = {"post" if request_type else "get": operation}
    _, schemas = models_json_schema(
        [(request_type, "validation") for _, request_type in ENDPOINTS.values() if request_type],
        ref_template="#/components/schemas/{model}",
    )
    info = {"title": "chatmill", "version": "1", "description": "OpenAI's API for chats, completions and tokens."}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas["$defs"]}}


# The server: the ASGI application, its start and its shutdown.

KEEP_ALIVE_SECONDS = 30  # after which an idle connection is closed
MAX_CONNECTIONS = 512  # at once; others are refused with status 503
MAX_HEADER_BYTES = 32_768  # of a request's line and headers


def create_app(
    models: Models, known_runs: runs.Runs, hosts: list[str], origins: list[str], api_key: str | None, *more: Route
) -> Starlette:
    """The ASGI application: API, runs and pages, and `more` routes."""
    app = Starlette(
        routes=[
            *(
                Route(path, partial(handle, models), methods=["POST" if request else "GET"])
                for path, (handle, request) in ENDPOINTS.items()
            ),
            Route("/openapi.json", JSONResponse(openapi()), methods=["GET"]),
            *known_runs.routes,
            *more,
            *(Route(path, send_page) for path in PAGES),
            Mount("/assets", StaticFiles(directory=STATIC)),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False),
            Middleware(SecurityMiddleware, origins=origins, key=api_key),
            Middleware(
                CORSMiddleware,
                allow_origins=origins,
                allow_methods=["GET", "POST"],
                allow_headers=["authorization", "content-type"],
            ),
        ],
        exception_handlers=dict.fromkeys((ApiError, HTTPException, ClientDisconnect, Exception), handle_error),
    )
    app.router.redirect_slashes = False
    return app


class RedactingFormatter(uvicorn.logging.DefaultFormatter):
    """Logs the traceback and type of an exception, but not its message, which may quote a conversation."""

    def formatException(self, ei: Any) -> str:
        return "".join([*traceback.format_tb(ei[2]), ei[0].__name__])


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
        draining = asyncio.create_task(self._models.drain(self._grace))
        await super().shutdown(sockets)
        await draining


def bind_socket(host: str, port: int) -> socket.socket:
    """A listening socket at an address. Raises ValueError if it cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Only where a socket names its protocol, asyncio sets TCP_NODELAY.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen()  # connections made before the server runs wait in the backlog
    except OSError as error:
        bound.close()
        raise ValueError(f"{host}:{port}: {(error.strerror or '').lower()}: choose another --host or --port") from error
    return bound
