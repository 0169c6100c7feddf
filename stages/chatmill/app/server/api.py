"""The endpoints of the API: chat completions, completions, models, and tokens with their probabilities."""

import secrets
from time import time

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Send

from chatmill.app.server import requests, responses
from chatmill.app.server.answers import CompletionWriter, answer_response, start_answers, submit
from chatmill.app.server.jobs import GenerationConfig, LogprobsJob
from chatmill.app.server.models import Model, Models
from chatmill.app.server.prompts import chat_prompt, check_ids, text_prompts, tokenize_prompt, too_long
from chatmill.app.server.requests import encode_without_blocking, parse
from chatmill.app.server.security import PING_SECONDS, CancellableResponse, send_response, to_api_error
from chatmill.inference.sampler import TokenLogprob

# The endpoints for tokens: ids of texts, texts of ids, and log probabilities.

TOP_LOGPROBS = 5  # the likeliest tokens that /tokens lists for each position


async def tokenize(models: Models, request: Request) -> Response:
    """The ids of a text or of a conversation."""
    parameters, num_bytes = await parse(models, request, requests.TokenizeRequest)
    model = await models.get(parameters.model)
    ids = await encode_without_blocking(num_bytes, tokenize_prompt, model, parameters)
    return responses.json_response({"tokens": ids, "count": len(ids), "max_model_len": model.context})


async def detokenize(models: Models, request: Request) -> Response:
    """The text of ids."""
    parameters, _ = await parse(models, request, requests.DetokenizeRequest)
    model = await models.get(parameters.model)
    check_ids(model, parameters.tokens, model.loaded.tokenizer.vocab_size, "tokens")
    return responses.json_response({"prompt": model.loaded.tokenizer.decode(parameters.tokens)})


async def token_logprobs(models: Models, request: Request) -> Response:
    """Each token of a text, its log probability and the likeliest tokens at its position."""
    parameters, _ = await parse(models, request, requests.TokensRequest)
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
        entries = token_entries(parameters.ids, logprobs, model)
        await send_response(send, responses.json_response({"tokens": entries}))

    return CancellableResponse(respond)


def token_entries(ids: list[int], logprobs: list[TokenLogprob], model: Model) -> list[responses.JsonObject]:
    """The entries of /tokens; the first token has no probability, as nothing precedes it."""
    tokenizer = model.loaded.tokenizer
    result = [{**responses.token_entry(ids[0], None, tokenizer), "top": []}]
    for token, logprob, top_logprobs in logprobs:
        top = [responses.token_entry(i, value, tokenizer) for i, value in top_logprobs]
        result.append({**responses.token_entry(token, logprob, tokenizer), "top": top})
    return result


# The endpoints of OpenAI's API for answers and models.


async def create_chat_completion(models: Models, request: Request) -> Response:
    """Answer a conversation."""
    parameters, num_bytes = await parse(models, request, requests.ChatRequest)
    model = await models.get(parameters.model)
    first = parameters.max_completion_tokens
    max_tokens = parameters.max_tokens if first is None else first
    config = generation_config(models, model, parameters, max_tokens, parameters.num_logprobs)
    prompt = await encode_without_blocking(num_bytes, chat_prompt, model, parameters, config.max_tokens)
    answers = start_answers(models, model, [prompt], config, parameters.n or 1)
    builder = responses.CompletionBuilder("chat", f"chatcmpl-{secrets.token_hex(12)}", model.name, int(time()))
    writer = CompletionWriter(answers, parameters, builder)
    return answer_response(answers, writer.stream if parameters.stream else writer.send_full)


async def create_completion(models: Models, request: Request) -> Response:
    """Continue a text, or several."""
    parameters, num_bytes = await parse(models, request, requests.CompletionRequest)
    model = await models.get(parameters.model)
    config = generation_config(models, model, parameters, parameters.max_tokens, parameters.logprobs)
    prompts = await encode_without_blocking(num_bytes, text_prompts, model, parameters)
    answers = start_answers(models, model, prompts, config, parameters.n or 1)
    builder = responses.CompletionBuilder("text", f"cmpl-{secrets.token_hex(12)}", model.name, int(time()))
    writer = CompletionWriter(answers, parameters, builder)
    return answer_response(answers, writer.stream if parameters.stream else writer.send_full)


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


def generation_config(
    models: Models,
    model: Model,
    parameters: requests.GenerationRequest,
    max_tokens: int | None,
    num_logprobs: int | None,
) -> GenerationConfig:
    """The parameters of a request, with the server's defaults for those that it leaves out."""
    sampling = parameters.sampling(models.options.sampling, secrets.randbits(32))
    limit = models.options.max_tokens if max_tokens is None else max_tokens if max_tokens > 0 else model.context
    return GenerationConfig(sampling, limit, parameters.stops, num_logprobs)
