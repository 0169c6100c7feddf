"""The endpoints of OpenAI's API for answers and models."""

import secrets
from time import time

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from chatmill.app.server import request_models, responses
from chatmill.app.server.answers import answer_response, start_answers
from chatmill.app.server.api_errors import HEADER, report_ignored
from chatmill.app.server.client_tools import client_function, ignored_tools, refused_tools
from chatmill.app.server.jobs import GenerationConfig
from chatmill.app.server.models import Models
from chatmill.app.server.prompts import chat_prompt, text_prompts
from chatmill.app.server.request_body import encode_without_blocking, parse
from chatmill.app.server.streaming import CompletionWriter

IGNORED_TOOLS = (
    "chatmill: a client declares tools that the model cannot call; they are ignored, and the answers' header "
    f"{HEADER} names them (this is logged once; --strict refuses such requests)"
)


async def create_chat_completion(models: Models, request: Request) -> Response:
    """Answer a conversation."""
    parameters, num_bytes = await parse(models, request, request_models.ChatRequest)
    model = await models.get(parameters.model)

    # Tools: the client's calculator, if the model was trained to call one.
    function = client_function(model, parameters)
    if unknown := ignored_tools(parameters, function):
        if models.options.strict:
            raise refused_tools(model, unknown)
        report_ignored(request, [f"tools.{name}" for name in unknown])
        models.log_once(IGNORED_TOOLS)

    # The prompt, and the answers that are generated while the response is sent.
    max_tokens = parameters.max_completion_tokens or parameters.max_tokens
    config = generation_config(models, parameters, max_tokens, parameters.num_logprobs)
    config = config._replace(ends_at_call=function is not None)
    prompt = await encode_without_blocking(num_bytes, chat_prompt, model, parameters, config.max_tokens, function)
    answers = start_answers(models, model, [prompt], config, parameters.n or 1)
    builder = responses.CompletionBuilder("chat", f"chatcmpl-{secrets.token_hex(12)}", model.name, int(time()))
    writer = CompletionWriter(answers, parameters, builder, function)
    return answer_response(answers, writer.stream if parameters.stream else writer.send_full)


async def create_completion(models: Models, request: Request) -> Response:
    """Continue a text, or several."""
    parameters, num_bytes = await parse(models, request, request_models.CompletionRequest)
    model = await models.get(parameters.model)
    config = generation_config(models, parameters, parameters.max_tokens, parameters.logprobs)
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
    models: Models, parameters: request_models.GenerationRequest, max_tokens: int | None, num_logprobs: int | None
) -> GenerationConfig:
    """The parameters of a request, with the server's defaults for those that it leaves out."""
    sampling = parameters.sampling(models.options.sampling, secrets.randbits(32))
    return GenerationConfig(sampling, max_tokens or models.options.max_tokens, parameters.stops, num_logprobs)
