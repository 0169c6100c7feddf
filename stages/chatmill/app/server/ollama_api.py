"""ollama's endpoints, so that its clients connect: `/api/chat`, `/api/generate`, and what they ask about models."""

import hashlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Send

from chatmill.app.server import ollama_requests, request_models, responses
from chatmill.app.server.answers import Answer, answer_response, start_answers
from chatmill.app.server.api import generation_config, start_chat
from chatmill.app.server.api_errors import ApiError, send_response, to_api_error
from chatmill.app.server.client_tools import ClientCall, ClientFunction
from chatmill.app.server.embeddings import embed_all, text_ids
from chatmill.app.server.models import Models
from chatmill.app.server.prompts import text_prompt
from chatmill.app.server.request_body import encode_without_blocking, parse
from chatmill.app.server.streaming import send_stream
from chatmill.conversation import Part

VERSION = "0.12.0"  # of ollama, whose API this is; clients require a least one
TAG = ":latest"  # which clients add to a name


async def chat(models: Models, request: Request) -> Response:
    """Answer a conversation; a last message of the assistant is continued."""
    parameters, num_bytes = await parse(models, request, ollama_requests.OllamaChatRequest)
    name = model_name(models, parameters.model)
    if not parameters.messages:
        return await load(models, name, {"message": {"role": "assistant", "content": ""}})
    for message in parameters.messages:
        if isinstance(message, dict) and message.get("images"):
            raise ApiError(400, "messages: images are not supported", param="messages", code="unsupported_parameter")
    last = parameters.messages[-1]
    values = {
        "messages": parameters.messages,
        "tools": parameters.tools,
        "continue_final_message": isinstance(last, dict) and last.get("role") == "assistant",
        "truncation": "auto",
    }
    started = await start_chat(models, request, chat_request(name, parameters, values), num_bytes)
    writer = OllamaWriter(started.answers[0], started.function, is_chat=True)
    return answer_response(models, started.answers, writer.send_full if parameters.stream is False else writer.stream)


async def generate(models: Models, request: Request) -> Response:
    """Answer a text, or with `raw` continue it."""
    parameters, num_bytes = await parse(models, request, ollama_requests.OllamaGenerateRequest)
    name = model_name(models, parameters.model)
    if not parameters.prompt:
        return await load(models, name, {"response": ""})
    if parameters.raw:
        request_values = chat_request(name, parameters, {"messages": [{}]})
        model = await models.get(name)
        config = generation_config(models, request_values, request_values.max_tokens, None)
        prompt = await encode_without_blocking(num_bytes, text_prompt, model, parameters.prompt)
        answers = start_answers(models, model, [prompt], config)
    else:
        system = [{"role": "system", "content": parameters.system}] if parameters.system else []
        messages = [*system, {"role": "user", "content": parameters.prompt}]
        values = {"messages": messages, "truncation": "auto"}
        answers = (await start_chat(models, request, chat_request(name, parameters, values), num_bytes)).answers
    writer = OllamaWriter(answers[0], None, is_chat=False)
    return answer_response(models, answers, writer.send_full if parameters.stream is False else writer.stream)


async def embed(models: Models, request: Request) -> Response:
    """The embeddings of one or more texts."""
    parameters, num_bytes = await parse(models, request, ollama_requests.OllamaEmbedRequest)
    model = await models.get(model_name(models, parameters.model))
    texts = [parameters.input] if isinstance(parameters.input, str) else list(parameters.input)
    ids = await encode_without_blocking(num_bytes, text_ids, model, texts)
    vectors = await embed_all(models, model, ids)
    values = {"model": model.name, "embeddings": [vector.tolist() for vector in vectors]}
    return JSONResponse(values | {"prompt_eval_count": sum(map(len, ids))})


async def list_models(models: Models, _: Request) -> Response:
    """All models."""
    return JSONResponse({"models": [describe(models, name) for name in models.all_names()]})


async def list_loaded(models: Models, _: Request) -> Response:
    """The loaded models."""
    forever = "2318-01-01T00:00:00Z"
    loaded = [describe(models, model.name) | {"expires_at": forever, "size_vram": 0} for model in models.loaded()]
    return JSONResponse({"models": loaded})


async def show_model(models: Models, request: Request) -> Response:
    """One model."""
    parameters, _ = await parse(models, request, ollama_requests.OllamaShowRequest)
    name = model_name(models, parameters.model or parameters.name)
    models.check_name(name)
    entry, description = models.describe(name), describe(models, name)
    values = {
        "modelfile": f"FROM {name}",
        "parameters": "\n".join(f"{key} {value}" for key, value in entry["defaults"].items()),
        "template": entry["template"] or "",
        "details": description["details"],
        "model_info": {"general.architecture": "chatmill", "chatmill.context_length": entry["max_model_len"]},
        "capabilities": ["completion", *(["tools"] if entry["tools"] else [])],
        "modified_at": description["modified_at"],
    }
    return JSONResponse(values)


async def version(_: Models, __: Request) -> Response:
    """The version of ollama whose API this is."""
    return JSONResponse({"version": VERSION})


def describe(models: Models, name: str) -> dict[str, Any]:
    """An entry of /api/tags."""
    entry = models.describe(name)
    changed = datetime.fromtimestamp(entry["created"], UTC).isoformat().replace("+00:00", "Z")
    family = entry["template"] or "chatmill"
    details = {"parent_model": "", "format": entry["engine"] or "", "family": family, "families": [family]}
    details |= {"parameter_size": "", "quantization_level": ""}
    return {
        "name": name,
        "model": name,
        "modified_at": changed,
        "size": entry["size"] or 0,
        "digest": hashlib.sha256(f"{name} {entry['size']} {changed}".encode()).hexdigest(),
        "details": details,
    }


def model_name(models: Models, given: str | None) -> str:
    """The name of a model, without the tag that clients add. Raises ApiError for none."""
    if not given:
        raise ApiError(400, "model: expected a name", param="model", code="invalid_value")
    return given.removesuffix(TAG) if given not in models.names else given


async def load(models: Models, name: str, empty: dict[str, Any]) -> Response:
    """The response to a request without a text, which only loads the model."""
    model = await models.get(name)
    return JSONResponse({"model": model.name, "created_at": timestamp(), **empty, "done": True, "done_reason": "load"})


def chat_request(
    name: str, parameters: ollama_requests.OllamaRequest, values: dict[str, Any]
) -> request_models.ChatRequest:
    """The same request for /v1/chat/completions. Raises ApiError."""
    given, names = parameters.options or {}, ollama_requests.OPTIONS
    options = {names[key]: value for key, value in given.items() if key in names and value is not None}
    if options.get("max_tokens") in (-1, -2):  # without a limit
        options["max_tokens"] = 1 << 30
    wanted = parameters.format
    if isinstance(wanted, dict):
        options["response_format"] = {"type": "json_schema", "json_schema": {"schema": wanted}}
    elif wanted == "json":
        options["response_format"] = {"type": "json_object"}
    given_values = {key: value for key, value in (values | options).items() if value is not None}
    try:
        return request_models.ChatRequest.model_validate({"model": name, **given_values})
    except ValidationError as error:
        raise request_models.validation_error(error) from error


class OllamaWriter:
    """Sends one answer in ollama's format, as one object or as lines of JSON."""

    def __init__(self, answer: Answer, function: ClientFunction | None, *, is_chat: bool) -> None:
        self._answer, self._is_chat = answer, is_chat
        self._call = ClientCall(function) if function else None

    async def send_full(self, send: Send) -> None:
        """Send the complete answer."""
        update = await self._answer.complete()
        values = self._object(responses.merge_texts(update.parts)) | self._totals()
        await send_response(send, responses.json_response(values))

    async def stream(self, send: Send) -> None:
        """Send the answer as lines of JSON."""
        options = {"content_type": b"application/x-ndjson", "layout": b"%b\n", "ping": b"", "last": b""}
        await send_stream(send, [self._answer], self._lines(), **options)

    async def _lines(self) -> AsyncIterator[bytes | None]:
        forced: list[Part] = []  # arguments of a call, which this API sends as a whole
        async for update in self._answer.updates():
            if update is None:
                yield None
            elif self._call and self._call.function.schema is not None:
                forced += update.parts
            else:
                yield responses.to_json(self._object(update.parts))
        if self._answer.job.error:
            yield responses.to_json({"error": to_api_error(self._answer.job.error).message})
            return
        yield responses.to_json(self._object(forced) | self._totals())

    def _object(self, parts: list[Part]) -> dict[str, Any]:
        text = responses.plain_text(parts)
        fields = {"model": self._answer.model.name, "created_at": timestamp(), "done": False}
        if not self._is_chat:
            return fields | {"response": text}
        message: dict[str, Any] = {"role": "assistant", "content": text}
        for call in self._call.message(parts).get("tool_calls", ()) if self._call else ():
            arguments = responses.parse_arguments(call["function"]["arguments"])
            message["tool_calls"] = [{"function": {"name": call["function"]["name"], "arguments": arguments}}]
        return fields | {"message": message}

    def _totals(self) -> dict[str, Any]:
        times, job = self._answer.job.times, self._answer.job
        first = times.first_token_at or times.ended_at
        return {
            "done": True,
            "done_reason": "length" if job.finish_reason == "length" else "stop",
            "total_duration": ns(times.ended_at - times.submitted_at),
            "load_duration": 0,
            "prompt_eval_count": len(job.prompt_ids),
            "prompt_eval_duration": ns(first - times.started_at),
            "eval_count": len(job.generation.generated_ids),
            "eval_duration": ns(times.ended_at - first),
        }


def ns(seconds: float) -> int:
    """Seconds as nanoseconds."""
    return int(seconds * 1e9)


def timestamp() -> str:
    """The time in ISO 8601."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
