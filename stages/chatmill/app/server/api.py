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

from chatmill.app.server import requests, shapes
from chatmill.app.server.errors import Full, Refusal, Stopped, refusal_of
from chatmill.app.server.guard import BODY_SECONDS, MOST_BYTES, too_large
from chatmill.app.server.jobs import Answer, Chance, Reading, Wanted
from chatmill.app.server.live import Live, send_whole
from chatmill.app.server.models import Model, Models
from chatmill.app.server.prompts import Prompt, chat_prompt, check_ids, ids_of, text_prompt, too_long
from chatmill.app.server.telling import Telling, reply

LIKELIEST = 5  # tokens that /tokens tells beside each
SHORT = 4096  # bytes of a body
Made = TypeVar("Made")


def routes(models: Models) -> list[Route]:
    """A route for each endpoint."""
    posts = {
        "/v1/chat/completions": chat,
        "/v1/completions": complete,
        "/tokenize": tokenize,
        "/detokenize": detokenize,
        "/tokens": tokens,
    }
    gets = {"/health": health, "/v1/models": list_models, "/v1/models/{name:path}": show_model}
    return [
        *(Route(path, partial(handle, models), methods=["POST"]) for path, handle in posts.items()),
        *(Route(path, partial(handle, models)) for path, handle in gets.items()),
    ]


async def chat(models: Models, request: Request) -> Response:
    """Answer a conversation."""
    body = await body_of(request)
    asked = requests.read(requests.ChatRequest, body)
    model = await models.get(asked.model)
    wanted = wanted_of(models, asked, asked.max_completion_tokens or asked.max_tokens, asked.top)
    prompt = await encoded(body, chat_prompt, model, asked, wanted.max_tokens)
    shape = shapes.Shape("chat", f"chatcmpl-{secrets.token_hex(12)}", model.name, int(time()))
    return answered(models, model, asked, prompt, wanted._replace(lead=prompt.lead), shape)


async def complete(models: Models, request: Request) -> Response:
    """Continue a text."""
    body = await body_of(request)
    asked = requests.read(requests.CompletionRequest, body)
    model = await models.get(asked.model)
    wanted = wanted_of(models, asked, asked.max_tokens, asked.logprobs)
    prompt = await encoded(body, text_prompt, model, asked)
    shape = shapes.Shape("text", f"cmpl-{secrets.token_hex(12)}", model.name, int(time()))
    return answered(models, model, asked, prompt, wanted._replace(lead=""), shape)


async def tokenize(models: Models, request: Request) -> Response:
    """The ids of a text, or of a conversation."""
    body = await body_of(request)
    asked = requests.read(requests.TokenizeRequest, body)
    model = await models.get(asked.model)
    ids = await encoded(body, ids_of, model, asked)
    return reply({"tokens": ids, "count": len(ids), "max_model_len": model.context})


async def detokenize(models: Models, request: Request) -> Response:
    """The text of ids."""
    asked = requests.read(requests.DetokenizeRequest, await body_of(request))
    model = await models.get(asked.model)
    check_ids(model, asked.tokens, model.loaded.tokenizer.vocab_size, "tokens")
    return reply({"prompt": model.loaded.tokenizer.decode(asked.tokens)})


async def tokens(models: Models, request: Request) -> Response:
    """Each token of a text, how likely it was, and which were likelier."""
    asked = requests.read(requests.TokensRequest, await body_of(request))
    model = await models.get(asked.model)
    check_ids(model, asked.ids, model.loaded.engine.vocab_size, "ids")
    if len(asked.ids) > model.context:
        raise too_long(len(asked.ids), model.context, "ids")
    job = Reading(asked.ids, LIKELIEST, models.options.seconds)
    submit(model, job)

    async def respond(send: Send) -> None:
        try:
            found = await job.outlet.take()
        finally:
            model.scheduler.cancel(job)
        if job.error:
            raise refusal_of(job.error)
        await send_whole(send, reply({"tokens": all_shown(asked.ids, found[0], model)}))

    return Live(respond)


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
        raise Refusal(404, f"there is no model {name!r:.200}", param="model", code="model_not_found")
    return JSONResponse(found)


async def body_of(request: Request) -> bytes:
    """The body of a request. Raises Refusal where it is too long, or comes too slowly."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for stretch in request.stream():
                body += stretch
                if len(body) > MOST_BYTES:
                    raise too_large()
    except TimeoutError as error:
        raise Refusal(408, f"the body did not come within {BODY_SECONDS} seconds") from error
    return bytes(body)


async def encoded(body: bytes, encode: Callable[..., Made], *arguments: object) -> Made:
    """What comes of a request's text: beside the event loop, unless it is so short that this would take longer."""
    if len(body) < SHORT:
        return encode(*arguments)
    return await asyncio.to_thread(encode, *arguments)


def wanted_of(models: Models, asked: requests.Generated, max_tokens: int | None, top: int | None) -> Wanted:
    """How a request wants its answer, with the server's defaults for what it does not say."""
    sampling = asked.sampling(models.options.sampling, secrets.randbits(32))
    return Wanted(sampling, max_tokens or models.options.max_tokens, asked.stops, top)


def submit(model: Model, job: Answer | Reading) -> None:
    """Have a job done. Raises Refusal where that cannot be."""
    try:
        model.scheduler.submit(job)
    except ValueError as error:
        raise Refusal(400, str(error), code="invalid_value") from error
    except (Full, Stopped) as error:
        raise refusal_of(error) from error


def all_shown(ids: list[int], chances: list[Chance], model: Model) -> list[shapes.Values]:
    """Tokens as /tokens tells them; before the first there is nothing by which it were likely."""
    tokenizer = model.loaded.tokenizer
    result = [{**shapes.shown_token(ids[0], None, tokenizer), "top": []}]
    for one in chances:
        top = [shapes.shown_token(i, value, tokenizer) for i, value in one.top]
        result.append({**shapes.shown_token(one.token, one.logprob, tokenizer), "top": top})
    return result


def answered(
    models: Models, model: Model, asked: requests.Generated, prompt: Prompt, wanted: Wanted, shape: shapes.Shape
) -> Response:
    """The response to a request for an answer: whole, or as events."""
    answer = Answer(model.interpreter, prompt.ids, wanted, models.options.seconds)
    submit(model, answer)
    telling = Telling(model, answer, wanted, asked, prompt, shape)

    async def respond(send: Send) -> None:
        try:
            await (telling.stream(send) if asked.stream else telling.whole(send))
        finally:
            model.scheduler.cancel(answer)

    return Live(respond)
