"""Errors as OpenAI's API tells them."""

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
WAIT = 2  # seconds after which one who was refused may ask again


class Full(Exception):
    """As many wait as may wait."""


class Stopped(Exception):
    """The model answers no more."""


class Late(Exception):
    """The time for an answer is over."""


class Refusal(Exception):
    """An answer that is an error: a status, a sentence, and what of the request it is about."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def content(self) -> dict[str, Any]:
        """The error as an object."""
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The error as an answer."""
        headers = {"Retry-After": str(WAIT)} if self.status in (429, 503) else {}
        headers |= {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        return JSONResponse(self.content(), self.status, headers)

    def raw(self) -> bytes:
        """The error as JSON."""
        return json.dumps(self.content()).encode()


def refusal_of(error: Exception) -> Refusal:
    """What is told of a job that failed."""
    match error:
        case Full():
            return Refusal(429, f"the server is busy: {error}", code="queue_full")
        case Stopped():
            return Refusal(503, str(error), code="stopping")
        case Late():
            return Refusal(504, str(error), code="time_limit")
        case ValueError():
            return Refusal(500, str(error), code="model_failed")
        case _:
            return Refusal(503, str(error) or "out of memory", code="out_of_memory")


async def refused(_: Request, error: Exception) -> Response:
    """What Starlette is to answer where something was refused; what is not async it would answer in a thread."""
    assert isinstance(error, Refusal)
    return error.response()


async def no_such_page(request: Request, error: Exception) -> Response:
    """What Starlette is to answer where no route fits."""
    status = getattr(error, "status_code", 404)
    said = {404: "there is nothing here", 405: f"{request.method} is not what is done here"}
    response = Refusal(status, f"{request.url.path}: {said.get(status, error)}").response()
    response.headers.update(getattr(error, "headers", None) or {})
    return response


async def failed(_: Request, __: Exception) -> Response:
    """What Starlette is to answer after a mistake of ours, which is on stderr."""
    return Refusal(500, "the server made a mistake: its terminal tells more").response()
