"""The routes of all endpoints, and their description as /openapi.json."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from chatmill.app.server import api, request_models, tokens_api
from chatmill.app.server.models import Models

Handler = Callable[[Models, Request], Awaitable[Response]]


class Endpoint(NamedTuple):
    """An endpoint: its handler, and the parameters of its body; None for a GET."""

    handle: Handler
    request_type: type[request_models.ModelRequest] | None = None


ENDPOINTS = {
    "/v1/chat/completions": Endpoint(api.create_chat_completion, request_models.ChatRequest),
    "/v1/completions": Endpoint(api.create_completion, request_models.CompletionRequest),
    "/tokenize": Endpoint(tokens_api.tokenize, request_models.TokenizeRequest),
    "/detokenize": Endpoint(tokens_api.detokenize, request_models.DetokenizeRequest),
    "/tokens": Endpoint(tokens_api.token_logprobs, request_models.TokensRequest),
    "/health": Endpoint(api.health),
    "/v1/models": Endpoint(api.list_models),
    "/v1/models/{name}": Endpoint(api.show_model),
}


def routes(models: Models) -> list[Route]:
    """One route for each endpoint."""
    description = JSONResponse(openapi())

    async def show_openapi(_: Request) -> Response:
        return description

    return [
        *(
            Route(
                path.replace("{name}", "{name:path}"),
                partial(endpoint.handle, models),
                methods=["POST" if endpoint.request_type else "GET"],
            )
            for path, endpoint in ENDPOINTS.items()
        ),
        Route("/openapi.json", show_openapi),
    ]


def openapi() -> dict[str, Any]:
    """The description of all endpoints, in OpenAPI 3.1."""
    types = [endpoint.request_type for endpoint in ENDPOINTS.values() if endpoint.request_type]
    _, schemas = models_json_schema(
        [(request_type, "validation") for request_type in types], ref_template="#/components/schemas/{model}"
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "chatmill", "version": "1", "description": "OpenAI's API for chats, completions and tokens."},
        "paths": {path: _operation(path, endpoint) for path, endpoint in ENDPOINTS.items()},
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _operation(path: str, endpoint: Endpoint) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": path.strip("/").replace("/", "_").replace("{", "").replace("}", ""),
        "summary": (endpoint.handle.__doc__ or "").partition("\n")[0],
        "responses": {"200": {"description": "the result"}, "default": {"description": "an error"}},
    }
    if "{name}" in path:
        schema = {"type": "string"}
        operation["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": schema}]
    if endpoint.request_type is None:
        return {"get": operation}
    body = {"$ref": f"#/components/schemas/{endpoint.request_type.__name__}"}
    operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return {"post": operation}
