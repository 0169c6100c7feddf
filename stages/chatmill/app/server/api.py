"""The endpoints of the API: chat completions, completions, models, and tokens with their probabilities."""

import asyncio
import secrets
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Send

from chatmill.app.server import requests
from chatmill.app.server.answers import Answer, JsonObject, job_response
from chatmill.app.server.models import Model, Models
from chatmill.app.server.requests import (
    Prompt,
    chat_prompt,
    check_ids,
    check_length,
    parse,
    text_prompt,
    tokenize_prompt,
)
from chatmill.app.server.scheduler import GenerationConfig, LogprobsJob
from chatmill.app.server.security import to_api_error
from chatmill.app.terminal.tokens import token_of
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer

AnswerRequest = TypeVar("AnswerRequest", requests.ChatRequest, requests.CompletionRequest)

# The endpoints for tokens: ids of texts, and log probabilities.

TOP_LOGPROBS = 5  # the likeliest tokens that /tokens lists for each position
MAX_LOGITS = 1 << 26  # of a text, which are held at once: 256 MB


async def tokenize(models: Models, request: Request) -> Response:
    """The ids of a text or of a conversation."""
    parameters = await parse(request, requests.TokenizeRequest)
    model = await models.get(parameters.model)
    ids = await asyncio.to_thread(tokenize_prompt, model, parameters)
    return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": model.context})


async def token_logprobs(models: Models, request: Request) -> Response:
    """Each token of a text, its log probability and the likeliest tokens at its position."""
    parameters = await parse(request, requests.TokensRequest)
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


async def create_chat_completion(models: Models, request: Request) -> Response:
    """Answer a conversation."""
    return await answer(models, request, requests.ChatRequest, chat_prompt)


async def create_completion(models: Models, request: Request) -> Response:
    """Continue a text."""
    return await answer(models, request, requests.CompletionRequest, text_prompt)


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
