"""Errors in the format of OpenAI's API."""

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    501: "invalid_request_error",
}
RETRY_AFTER_SECONDS = 2  # in the Retry-After header of a busy server


class QueueFull(Exception):
    """The queue of waiting requests is full."""


class SchedulerStopped(Exception):
    """The scheduler takes no more jobs, or ended this one."""


class DeadlineExceeded(Exception):
    """A job took longer than the time limit."""


class ApiError(Exception):
    """An error response: the HTTP status, a message, and the parameter it is about."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def as_dict(self) -> dict[str, Any]:
        """The error as a JSON object."""
        error_type = ERROR_TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": error_type, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The error as an HTTP response."""
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if self.status in (429, 503) else {}
        headers |= {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        headers |= {"Connection": "close"} if self.status == 408 else {}
        return JSONResponse(self.as_dict(), self.status, headers)

    def as_json(self) -> bytes:
        """The error as JSON."""
        return json.dumps(self.as_dict()).encode()


def to_api_error(error: Exception) -> ApiError:
    """The ApiError for an exception that ended a job."""
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


async def handle_api_error(request: Request, error: Exception) -> Response:
    """Starlette's handler of ApiError; it is async because Starlette would call another one in a thread."""
    assert isinstance(error, ApiError)
    response = error.response()
    if request.url.path.startswith("/api/"):  # ollama's clients expect a text
        headers = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
        return JSONResponse({"error": error.message}, error.status, headers)
    return response


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's handler of HTTPException, which is raised where no route matches."""
    status = getattr(error, "status_code", 404)
    messages = {404: "page not found", 405: f"method {request.method} not allowed"}
    response = ApiError(status, f"{request.url.path}: {messages.get(status, error)}").response()
    response.headers.update(getattr(error, "headers", None) or {})
    return response


async def handle_exception(_: Request, __: Exception) -> Response:
    """Starlette's handler of all other exceptions, which are logged to stderr."""
    return ApiError(500, "internal server error: see the server's log").response()
