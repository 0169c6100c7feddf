"""The endpoints: those of OpenAI's API, and some of our own."""

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from time import time
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Send

from chatmill.app.server import request_models, responses
from chatmill.app.server.api_errors import ApiError, QueueFull, SchedulerStopped, to_api_error
from chatmill.app.server.cancellable_response import PING_SECONDS, CancellableResponse, send_response
from chatmill.app.server.jobs import CompletionJob, GenerationConfig, LogprobsJob, TokenLogprob
from chatmill.app.server.models import Model, Models, model_not_found
from chatmill.app.server.prompts import Prompt, chat_prompt, check_ids, text_prompt, tokenize_prompt, too_long
from chatmill.app.server.security import BODY_RATE, BODY_SECONDS, MAX_BODY_BYTES, too_large
from chatmill.app.server.streaming import CompletionWriter, json_response

TOP_LOGPROBS = 5  # the likeliest tokens that /tokens lists for each position
MAX_INLINE_BYTES = 4096  # of a body; a longer one is encoded in a thread
MAX_INLINE_JSON = 65_536  # bytes of a body; a longer one is parsed in a thread
Result = TypeVar("Result")


def routes(models: Models) -> list[Route]:
    """One route for each endpoint."""
    posts = {
        "/v1/chat/completions": create_chat_completion,
        "/v1/completions": create_completion,
        "/tokenize": tokenize,
        "/detokenize": detokenize,
        "/tokens": token_logprobs,
    }
    gets = {"/health": health, "/v1/models": list_models, "/v1/models/{name:path}": show_model}
    return [
        *(Route(path, partial(handle, models), methods=["POST"]) for path, handle in posts.items()),
        *(Route(path, partial(handle, models)) for path, handle in gets.items()),
    ]


async def create_chat_completion(models: Models, request: Request) -> Response:
    """Answer a conversation."""
    body = await read_body(request)
    parameters = await parse(models, request_models.ChatRequest, body)
    model = await models.get(parameters.model)
    config = generation_config(
        models, parameters, parameters.max_completion_tokens or parameters.max_tokens, parameters.num_logprobs
    )
    prompt = await encode_without_blocking(body, chat_prompt, model, parameters, config.max_tokens)
    builder = responses.CompletionBuilder("chat", f"chatcmpl-{secrets.token_hex(12)}", model.name, int(time()))
    return completion_response(
        models, model, parameters, prompt, config._replace(answer_prefix=prompt.answer_prefix), builder
    )


async def create_completion(models: Models, request: Request) -> Response:
    """Continue a text."""
    body = await read_body(request)
    parameters = await parse(models, request_models.CompletionRequest, body)
    model = await models.get(parameters.model)
    config = generation_config(models, parameters, parameters.max_tokens, parameters.logprobs)
    prompt = await encode_without_blocking(body, text_prompt, model, parameters)
    builder = responses.CompletionBuilder("text", f"cmpl-{secrets.token_hex(12)}", model.name, int(time()))
    return completion_response(models, model, parameters, prompt, config._replace(answer_prefix=""), builder)


async def tokenize(models: Models, request: Request) -> Response:
    """The ids of a text or of a conversation."""
    body = await read_body(request)
    parameters = await parse(models, request_models.TokenizeRequest, body)
    model = await models.get(parameters.model)
    ids = await encode_without_blocking(body, tokenize_prompt, model, parameters)
    return json_response({"tokens": ids, "count": len(ids), "max_model_len": model.context})


async def detokenize(models: Models, request: Request) -> Response:
    """The text of ids."""
    parameters = await parse(models, request_models.DetokenizeRequest, await read_body(request))
    model = await models.get(parameters.model)
    check_ids(model, parameters.tokens, model.loaded.tokenizer.vocab_size, "tokens")
    return json_response({"prompt": model.loaded.tokenizer.decode(parameters.tokens)})


async def token_logprobs(models: Models, request: Request) -> Response:
    """Each token of a text, its log probability and the likeliest tokens at its position."""
    parameters = await parse(models, request_models.TokensRequest, await read_body(request))
    model = await models.get(parameters.model)
    check_ids(model, parameters.ids, model.loaded.engine.vocab_size, "ids")
    if len(parameters.ids) > model.context:
        raise too_long(len(parameters.ids), model.context, "ids")
    job = LogprobsJob(parameters.ids, TOP_LOGPROBS, models.options.time_limit)
    submit(model, job)

    async def respond(send: Send) -> None:
        logprobs: list[TokenLogprob] = []
        try:
            while latest := await job.results.get_all():
                logprobs += latest
                await job.results.wait_closed(PING_SECONDS)
        finally:
            model.scheduler.cancel(job)
        if job.error:
            raise to_api_error(job.error)
        await send_response(send, json_response({"tokens": token_entries(parameters.ids, logprobs, model)}))

    return CancellableResponse(respond)


async def health(_: Models, __: Request) -> Response:
    """The server is running."""
    return JSONResponse({"status": "ok"})


async def list_models(models: Models, _: Request) -> Response:
    """All models."""
    return JSONResponse({"object": "list", "data": models.listing()})


async def show_model(models: Models, request: Request) -> Response:
    """One model."""
    name = request.path_params["name"]
    description = next((model for model in models.listing() if model["id"] == name), None)
    if description is None:
        raise model_not_found(name)
    return JSONResponse(description)


async def read_body(request: Request) -> bytes:
    """The body of a request. Raises ApiError if it is too long or arrives too slowly."""
    body, started = bytearray(), asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(BODY_SECONDS) as limit:
            async for chunk in request.stream():
                body += chunk
                limit.reschedule(started + BODY_SECONDS + len(body) / BODY_RATE)
                if len(body) > MAX_BODY_BYTES:
                    raise too_large()
    except TimeoutError as error:
        message = f"the body arrived too slowly: expected it within {BODY_SECONDS} seconds, or {BODY_RATE:,} bytes/s"
        raise ApiError(408, message) from error
    return bytes(body)


async def parse(
    models: Models, request_type: type[request_models.RequestType], body: bytes
) -> request_models.RequestType:
    """Parse a request; large ones one at a time in a thread, as parsing blocks all threads."""
    if len(body) < MAX_INLINE_JSON:
        return request_models.parse_request(request_type, body)
    async with models.parsing:
        return await asyncio.to_thread(request_models.parse_request, request_type, body)


async def encode_without_blocking(body: bytes, encode: Callable[..., Result], *arguments: object) -> Result:
    """Call `encode`, in a thread unless the body is so short that a thread would take longer."""
    if len(body) < MAX_INLINE_BYTES:
        return encode(*arguments)
    return await asyncio.to_thread(encode, *arguments)


def generation_config(
    models: Models, parameters: request_models.GenerationRequest, max_tokens: int | None, num_logprobs: int | None
) -> GenerationConfig:
    """The parameters of a request, with the server's defaults for those that it leaves out."""
    sampling = parameters.sampling(models.options.sampling, secrets.randbits(32))
    return GenerationConfig(sampling, max_tokens or models.options.max_tokens, parameters.stops, num_logprobs)


def submit(model: Model, job: CompletionJob | LogprobsJob) -> None:
    """Give a job to the model's scheduler. Raises ApiError if it is refused."""
    try:
        model.scheduler.submit(job)
    except ValueError as error:
        raise ApiError(400, str(error), code="invalid_value") from error
    except (QueueFull, SchedulerStopped) as error:
        raise to_api_error(error) from error


def token_entries(ids: list[int], logprobs: list[TokenLogprob], model: Model) -> list[responses.JsonObject]:
    """The entries of /tokens; the first token has no probability, as nothing precedes it."""
    tokenizer = model.loaded.tokenizer
    result = [{**responses.token_entry(ids[0], None, tokenizer), "top": []}]
    for token, logprob, top_logprobs in logprobs:
        top = [responses.token_entry(i, value, tokenizer) for i, value in top_logprobs]
        result.append({**responses.token_entry(token, logprob, tokenizer), "top": top})
    return result


def completion_response(
    models: Models,
    model: Model,
    parameters: request_models.GenerationRequest,
    prompt: Prompt,
    config: GenerationConfig,
    builder: responses.CompletionBuilder,
) -> Response:
    """The response to a completion request: one object, or a stream of events."""
    job = CompletionJob(model.prompt_builder, prompt.ids, config, models.options.time_limit)
    submit(model, job)
    writer = CompletionWriter(model, job, config, parameters, prompt, builder)

    async def respond(send: Send) -> None:
        try:
            await (writer.stream(send) if parameters.stream else writer.send_full(send))
        finally:
            model.scheduler.cancel(job)

    return CancellableResponse(respond)
