"""The endpoints of OpenAI's API, and those beside it."""

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
from chatmill.app.server.cancellable_response import CancellableResponse, send_response
from chatmill.app.server.jobs import CompletionJob, GenerationConfig, LogprobsJob, TokenLogprob
from chatmill.app.server.models import Model, Models
from chatmill.app.server.prompts import Prompt, chat_prompt, check_ids, text_prompt, tokenize_prompt, too_long
from chatmill.app.server.security import BODY_SECONDS, MAX_BODY_BYTES, too_large
from chatmill.app.server.streaming import CompletionWriter, json_response

TOP_LOGPROBS = 5  # tokens that /tokens tells beside each
MAX_INLINE_BYTES = 4096  # bytes of a body
Result = TypeVar("Result")


def routes(models: Models) -> list[Route]:
    """A route for each endpoint."""
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
    parameters = request_models.parse_request(request_models.ChatRequest, body)
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
    parameters = request_models.parse_request(request_models.CompletionRequest, body)
    model = await models.get(parameters.model)
    config = generation_config(models, parameters, parameters.max_tokens, parameters.logprobs)
    prompt = await encode_without_blocking(body, text_prompt, model, parameters)
    builder = responses.CompletionBuilder("text", f"cmpl-{secrets.token_hex(12)}", model.name, int(time()))
    return completion_response(models, model, parameters, prompt, config._replace(answer_prefix=""), builder)


async def tokenize(models: Models, request: Request) -> Response:
    """The ids of a text, or of a conversation."""
    body = await read_body(request)
    parameters = request_models.parse_request(request_models.TokenizeRequest, body)
    model = await models.get(parameters.model)
    ids = await encode_without_blocking(body, tokenize_prompt, model, parameters)
    return json_response({"tokens": ids, "count": len(ids), "max_model_len": model.context})


async def detokenize(models: Models, request: Request) -> Response:
    """The text of ids."""
    parameters = request_models.parse_request(request_models.DetokenizeRequest, await read_body(request))
    model = await models.get(parameters.model)
    check_ids(model, parameters.tokens, model.loaded.tokenizer.vocab_size, "tokens")
    return json_response({"prompt": model.loaded.tokenizer.decode(parameters.tokens)})


async def token_logprobs(models: Models, request: Request) -> Response:
    """Each token of a text, how likely it was, and which were likelier."""
    parameters = request_models.parse_request(request_models.TokensRequest, await read_body(request))
    model = await models.get(parameters.model)
    check_ids(model, parameters.ids, model.loaded.engine.vocab_size, "ids")
    if len(parameters.ids) > model.context:
        raise too_long(len(parameters.ids), model.context, "ids")
    job = LogprobsJob(parameters.ids, TOP_LOGPROBS, models.options.time_limit)
    submit(model, job)

    async def respond(send: Send) -> None:
        try:
            found = await job.results.get_all()
        finally:
            model.scheduler.cancel(job)
        if job.error:
            raise to_api_error(job.error)
        await send_response(send, json_response({"tokens": all_shown(parameters.ids, found[0], model)}))

    return CancellableResponse(respond)


async def health(_: Models, __: Request) -> Response:
    """Whether the server is there."""
    return JSONResponse({"status": "ok"})


async def list_models(models: Models, _: Request) -> Response:
    """All models."""
    return JSONResponse({"object": "list", "data": models.listing()})


async def show_model(models: Models, request: Request) -> Response:
    """One model."""
    name = request.path_params["name"]
    found = next((model for model in models.listing() if model["id"] == name), None)
    if found is None:
        raise ApiError(404, f"there is no model {name!r:.200}", param="model", code="model_not_found")
    return JSONResponse(found)


async def read_body(request: Request) -> bytes:
    """The body of a request. Raises ApiError where it is too long, or comes too slowly."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for stretch in request.stream():
                body += stretch
                if len(body) > MAX_BODY_BYTES:
                    raise too_large()
    except TimeoutError as error:
        raise ApiError(408, f"the body did not come within {BODY_SECONDS} seconds") from error
    return bytes(body)


async def encode_without_blocking(body: bytes, encode: Callable[..., Result], *arguments: object) -> Result:
    """What comes of a request's text: beside the event loop, unless it is so short that this would take longer."""
    if len(body) < MAX_INLINE_BYTES:
        return encode(*arguments)
    return await asyncio.to_thread(encode, *arguments)


def generation_config(
    models: Models, parameters: request_models.GenerationRequest, max_tokens: int | None, num_logprobs: int | None
) -> GenerationConfig:
    """How a request wants its answer, with the server's defaults for what it does not say."""
    sampling = parameters.sampling(models.options.sampling, secrets.randbits(32))
    return GenerationConfig(sampling, max_tokens or models.options.max_tokens, parameters.stops, num_logprobs)


def submit(model: Model, job: CompletionJob | LogprobsJob) -> None:
    """Have a job done. Raises ApiError where that cannot be."""
    try:
        model.scheduler.submit(job)
    except ValueError as error:
        raise ApiError(400, str(error), code="invalid_value") from error
    except (QueueFull, SchedulerStopped) as error:
        raise to_api_error(error) from error


def all_shown(ids: list[int], logprobs: list[TokenLogprob], model: Model) -> list[responses.JsonObject]:
    """Tokens as /tokens tells them; before the first there is nothing by which it were likely."""
    tokenizer = model.loaded.tokenizer
    result = [{**responses.token_entry(ids[0], None, tokenizer), "top": []}]
    for one in logprobs:
        top = [responses.token_entry(i, value, tokenizer) for i, value in one.top_logprobs]
        result.append({**responses.token_entry(one.token, one.logprob, tokenizer), "top": top})
    return result


def completion_response(
    models: Models,
    model: Model,
    parameters: request_models.GenerationRequest,
    prompt: Prompt,
    config: GenerationConfig,
    builder: responses.CompletionBuilder,
) -> Response:
    """The response to a request for an answer: whole, or as events."""
    job = CompletionJob(model.interpreter, prompt.ids, config, models.options.time_limit)
    submit(model, job)
    writer = CompletionWriter(model, job, config, parameters, prompt, builder)

    async def respond(send: Send) -> None:
        try:
            await (writer.stream(send) if parameters.stream else writer.send_full(send))
        finally:
            model.scheduler.cancel(job)

    return CancellableResponse(respond)
