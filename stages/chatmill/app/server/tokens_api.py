"""The endpoints for tokens: ids of texts, texts of ids, and log probabilities."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from chatmill.app.server import request_models, responses
from chatmill.app.server.answers import submit
from chatmill.app.server.api_errors import PING_SECONDS, CancellableResponse, send_response, to_api_error
from chatmill.app.server.jobs import LogprobsJob
from chatmill.app.server.models import Model, Models
from chatmill.app.server.prompts import check_ids, tokenize_prompt, too_long
from chatmill.app.server.request_body import encode_without_blocking, parse
from chatmill.inference.sampler import TokenLogprob

TOP_LOGPROBS = 5  # the likeliest tokens that /tokens lists for each position


async def tokenize(models: Models, request: Request) -> Response:
    """The ids of a text or of a conversation."""
    parameters, num_bytes = await parse(models, request, request_models.TokenizeRequest)
    model = await models.get(parameters.model)
    ids = await encode_without_blocking(num_bytes, tokenize_prompt, model, parameters)
    return responses.json_response({"tokens": ids, "count": len(ids), "max_model_len": model.context})


async def detokenize(models: Models, request: Request) -> Response:
    """The text of ids."""
    parameters, _ = await parse(models, request, request_models.DetokenizeRequest)
    model = await models.get(parameters.model)
    check_ids(model, parameters.tokens, model.loaded.tokenizer.vocab_size, "tokens")
    return responses.json_response({"prompt": model.loaded.tokenizer.decode(parameters.tokens)})


async def token_logprobs(models: Models, request: Request) -> Response:
    """Each token of a text, its log probability and the likeliest tokens at its position."""
    parameters, _ = await parse(models, request, request_models.TokensRequest)
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
