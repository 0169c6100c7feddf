"""Read and parse the body of a request without blocking the event loop."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request

from chatmill.app.server import request_models
from chatmill.app.server.api_errors import ApiError, report_ignored
from chatmill.app.server.models import Models

MAX_BODY_BYTES = 2 << 20
BODY_SECONDS = 60  # for a body to arrive
MAX_INLINE_BYTES = 4096  # of a body; a longer one is encoded in a thread
MAX_INLINE_JSON = 65_536  # bytes of a body; a longer one is parsed in a thread
Result = TypeVar("Result")


async def read_body(request: Request) -> bytes:
    """The body of a request. Raises ApiError if it is too long or arrives too slowly."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise ApiError(413, f"body: expected at most {MAX_BODY_BYTES:,} bytes", code="too_large")
    except TimeoutError as error:
        raise ApiError(408, f"the body arrived too slowly: expected it within {BODY_SECONDS} seconds") from error
    return bytes(body)


async def parse(
    models: Models, request: Request, request_type: type[request_models.RequestType]
) -> tuple[request_models.RequestType, int]:
    """The parameters of a request and the bytes of its body.

    Large bodies are parsed one at a time in a thread, as parsing blocks all threads.
    """
    body, strict = await read_body(request), models.options.strict
    if len(body) < MAX_INLINE_JSON:
        parameters = request_models.parse_request(request_type, body, strict=strict)
    else:
        async with models.parsing:
            parameters = await asyncio.to_thread(request_models.parse_request, request_type, body, strict=strict)
    report_ignored(request, parameters.ignored)
    return parameters, len(body)


async def encode_without_blocking(num_bytes: int, encode: Callable[..., Result], *arguments: object) -> Result:
    """Call `encode`, in a thread unless the body is so short that a thread would take longer."""
    if num_bytes < MAX_INLINE_BYTES:
        return encode(*arguments)
    return await asyncio.to_thread(encode, *arguments)
