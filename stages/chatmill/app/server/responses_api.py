"""`/v1/responses`: OpenAI's second API for answers, in terms of the first. Nothing is stored."""

import secrets
from collections.abc import AsyncIterator
from time import time
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from chatmill.app.server import request_models, responses, responses_request
from chatmill.app.server.answers import answer_response
from chatmill.app.server.api import Chat, start_chat
from chatmill.app.server.api_errors import ApiError, send_response, to_api_error
from chatmill.app.server.client_tools import ClientCall
from chatmill.app.server.models import Models
from chatmill.app.server.request_body import parse
from chatmill.app.server.streaming import send_stream
from chatmill.conversation import Part

TEXT_TYPES = ("input_text", "output_text", "text")


async def create_response(models: Models, request: Request) -> Response:
    """Answer a text or a conversation."""
    parameters, num_bytes = await parse(models, request, responses_request.ResponsesRequest)
    chat = await start_chat(models, request, chat_request(parameters), num_bytes)
    writer = ResponseWriter(chat, parameters)
    return answer_response(models, chat.answers, writer.stream if parameters.stream else writer.send_full)


def chat_request(parameters: responses_request.ResponsesRequest) -> request_models.ChatRequest:
    """The same request for /v1/chat/completions. Raises ApiError."""
    given = parameters.input
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages: list[Any] = [{"role": "system", "content": parameters.instructions}] if parameters.instructions else []
    messages += [as_message(item) for item in items]
    values: dict[str, Any] = {
        "model": parameters.model,
        "messages": messages,
        "max_tokens": parameters.max_output_tokens,
    }
    values |= {name: getattr(parameters, name) for name in ("temperature", "top_p", "truncation")}
    if parameters.tools:
        values["tools"] = [{"type": tool.type, "function": tool.function} for tool in parameters.tools]
    choice = parameters.tool_choice
    if isinstance(choice, responses_request.ResponsesToolChoice):
        values["tool_choice"] = {"type": choice.type, "function": choice.function}
    elif choice is not None:
        values["tool_choice"] = choice
    if wanted := parameters.text and parameters.text.format:
        values["response_format"] = {"type": wanted.type, "json_schema": {"schema": wanted.value}}
    try:
        return request_models.ChatRequest.model_validate({k: v for k, v in values.items() if v is not None})
    except ValidationError as error:
        raise request_models.validation_error(error) from error


def as_message(item: Any) -> Any:
    """An item of `input` as a message of /v1/chat/completions. Raises ApiError for items that have no such form."""
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}
    if kind == "function_call_output":
        return {"role": "tool", "content": item.get("output")}
    if kind != "message":
        raise ApiError(400, f"input: {kind!r:.60} is not supported", param="input", code="unsupported_parameter")
    content = item.get("content")
    if isinstance(content, list):
        content = [as_text(part) for part in content]
    role = item.get("role")
    return {"role": "system" if role == "developer" else role, "content": content}


def as_text(part: Any) -> Any:
    """A part of a message's content as one of /v1/chat/completions."""
    if isinstance(part, dict) and part.get("type") in TEXT_TYPES:
        return {"type": "text", "text": part.get("text")}
    return part  # the reader of messages refuses it


class ResponseWriter:
    """Sends one answer as a response object or as its events."""

    def __init__(self, chat: Chat, parameters: responses_request.ResponsesRequest) -> None:
        self._answer, self._model, self._function = chat.answers[0], chat.model, chat.function
        self._call = ClientCall(chat.function) if chat.function else None
        self._number = 0  # of the next event
        self._item_ids = {kind: f"{kind}_{secrets.token_hex(12)}" for kind in ("msg", "fc")}
        self._fields: responses.JsonObject = {
            "id": f"resp_{secrets.token_hex(12)}",
            "object": "response",
            "created_at": int(time()),
            "model": chat.model.name,
            "error": None,
            "instructions": parameters.instructions,
            "metadata": {},
            "parallel_tool_calls": False,
            "temperature": parameters.temperature,
            "top_p": parameters.top_p,
            "max_output_tokens": parameters.max_output_tokens,
            "tool_choice": "auto",
            "tools": [],
            "truncation": parameters.truncation,
            "store": False,
        }

    async def send_full(self, send: Send) -> None:
        """Send the complete response."""
        parts = (await self._answer.complete()).parts
        await send_response(send, responses.json_response(self._response(self._output(parts))))

    async def stream(self, send: Send) -> None:
        """Send the response as events."""
        await send_stream(send, [self._answer], self._events(), layout=b"%b\n\n", last=b"")

    async def _events(self) -> AsyncIterator[bytes | None]:
        empty = self._response([], "in_progress")
        parts: list[Part] = []
        opened = False
        pending = [self._event("response.created", response=empty), self._event("response.in_progress", response=empty)]
        async for update in self._answer.updates():
            if update is None:
                yield None
                continue
            for event in pending:
                yield event
            pending = []
            parts += update.parts
            if text := responses.plain_text(update.parts):
                for event in self._text_events(text, opened=opened):
                    yield event
                opened = True
        for event in pending:
            yield event
        if self._answer.job.error:
            error = to_api_error(self._answer.job.error)
            yield self._event("error", code=error.code, message=error.message, param=error.param)
            return
        output = self._output(parts)
        for index, item in enumerate(output):
            for event in self._closing_events(index, item, opened=opened and index == 0):
                yield event
        response = self._response(output)
        yield self._event(f"response.{response['status']}", response=response)

    def _text_events(self, text: str, *, opened: bool) -> list[bytes]:
        if self._function and self._function.schema is not None:
            item = self._call_item("", "in_progress")
            added = [] if opened else [self._event("response.output_item.added", output_index=0, item=item)]
            name, place = "response.function_call_arguments.delta", {"item_id": item["id"], "output_index": 0}
            return [*added, self._event(name, **place, delta=text)]
        item = self._text_item(None, "in_progress")
        place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        added = (
            []
            if opened
            else [
                self._event("response.output_item.added", output_index=0, item=item),
                self._event("response.content_part.added", **place, part=output_text("")),
            ]
        )
        return [*added, self._event("response.output_text.delta", **place, delta=text, logprobs=[])]

    def _closing_events(self, index: int, item: responses.JsonObject, *, opened: bool) -> list[bytes]:
        place: dict[str, Any] = {"item_id": item["id"], "output_index": index}
        done = self._event
        if item["type"] == "message":
            (part,) = item["content"]
            before = [] if opened else self._text_events("", opened=False)
            events = [
                done("response.output_text.done", **place, content_index=0, text=part["text"], logprobs=[]),
                done("response.content_part.done", **place, content_index=0, part=part),
            ]
        else:
            started = {**item, "arguments": "", "status": "in_progress"}
            before = [] if opened else [done("response.output_item.added", output_index=index, item=started)]
            arguments = {"name": item["name"], "arguments": item["arguments"]}
            events = [done("response.function_call_arguments.done", **place, **arguments)]
        return [*before, *events, done("response.output_item.done", output_index=index, item=item)]

    def _output(self, parts: list[Part]) -> list[responses.JsonObject]:
        """The items of a complete answer: its text, and the call of the client's function."""
        message = self._call.message(parts) if self._call else {}
        calls = [self._call_item(call["function"]["arguments"]) for call in message.get("tool_calls", ())]
        text = (message.get("content") if calls else None) or ("" if calls else responses.plain_text(parts))
        return [*([self._text_item(text)] if text or not calls else []), *calls]

    def _text_item(self, text: str | None, status: str = "completed") -> responses.JsonObject:
        content = [] if text is None else [output_text(text)]
        fields = {"type": "message", "role": "assistant", "status": status, "content": content}
        return {"id": self._item_ids["msg"], **fields}

    def _call_item(self, arguments: str, status: str = "completed") -> responses.JsonObject:
        assert self._call
        name = self._call.function.name
        fields = {"type": "function_call", "call_id": self._call.id, "name": name, "arguments": arguments}
        return {"id": self._item_ids["fc"], **fields, "status": status}

    def _response(self, output: list[responses.JsonObject], status: str = "") -> responses.JsonObject:
        cut = self._answer.job.finish_reason == "length"
        status = status or ("incomplete" if cut else "completed")
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        usage = responses.usage_of([self._answer.job])
        counts = (
            None
            if status == "in_progress"
            else {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": usage["prompt_tokens_details"],
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            }
        )
        return {**self._fields, "status": status, "incomplete_details": details, "output": output, "usage": counts}

    def _event(self, name: str, **values: Any) -> bytes:
        event = {"type": name, "sequence_number": self._number, **values}
        self._number += 1
        return b"event: %b\ndata: %b" % (name.encode(), responses.to_json(event))


def output_text(text: str) -> responses.JsonObject:
    """A text in an item's content."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
