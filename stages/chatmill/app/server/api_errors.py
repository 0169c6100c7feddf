"""Errors as OpenAI's API tells them."""

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
RETRY_AFTER_SECONDS = 2  # seconds after which one who was refused may ask again


class QueueFull(Exception):
    """As many wait as may wait."""


class SchedulerStopped(Exception):
    """The model answers no more."""


class DeadlineExceeded(Exception):
    """The time for an answer is over."""


class ApiError(Exception):
    """An answer that is an error: a status, a sentence, and what of the request it is about."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def as_dict(self) -> dict[str, Any]:
        """The error as an object."""
        kind = ERROR_TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The error as an answer."""
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if self.status in (429, 503) else {}
        headers |= {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        return JSONResponse(self.as_dict(), self.status, headers)

    def as_json(self) -> bytes:
        """The error as JSON."""
        return json.dumps(self.as_dict()).encode()


def to_api_error(error: Exception) -> ApiError:
    """What is told of a job that failed."""
    match error:
        case QueueFull():
            return ApiError(429, f"the server is busy: {error}", code="queue_full")
        case SchedulerStopped():
            return ApiError(503, str(error), code="stopping")
        case DeadlineExceeded():
            return ApiError(504, str(error), code="time_limit")
        case ValueError():
            return ApiError(500, str(error), code="model_failed")
        case _:
            return ApiError(503, str(error) or "out of memory", code="out_of_memory")


async def handle_api_error(_: Request, error: Exception) -> Response:
    """What Starlette is to answer where something was refused; what is not async it would answer in a thread."""
    assert isinstance(error, ApiError)
    return error.response()


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """What Starlette is to answer where no route fits."""
    status = getattr(error, "status_code", 404)
    said = {404: "there is nothing here", 405: f"{request.method} is not what is done here"}
    response = ApiError(status, f"{request.url.path}: {said.get(status, error)}").response()
    response.headers.update(getattr(error, "headers", None) or {})
    return response


async def handle_exception(_: Request, __: Exception) -> Response:
    """What Starlette is to answer after a mistake of ours, which is on stderr."""
    return ApiError(500, "the server made a mistake: its terminal tells more").response()
