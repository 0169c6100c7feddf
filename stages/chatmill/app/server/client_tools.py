"""Tools of the client, which runs them itself: `tools` and `tool_choice` of a request.

A model that was trained to call the calculator calls a function like it, one whose only parameter is an expression:

    {"type": "function", "function": {"name": "calculator", "parameters":
        {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}}}

Other tools are ignored, as a model may always answer without a call; a call cannot be forced.
"""

import json
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from chatmill.app.server import request_models
from chatmill.app.server.api_errors import ApiError
from chatmill.app.server.models import Model
from chatmill.conversation import CALCULATOR, Part

EXPRESSIONS = ("expression", "expr", "formula", "equation")  # names of a calculator's parameter


class ClientFunction(NamedTuple):
    """The function that an answer may call. `expression` is the parameter that takes the model's call."""

    name: str
    expression: str


class ClientCall:
    """The call in an answer, in the format of OpenAI's API."""

    def __init__(self, function: ClientFunction) -> None:
        self.function, self.id = function, f"call_{secrets.token_hex(12)}"

    def message(self, parts: Iterable[Part]) -> dict[str, Any]:
        """The fields of a complete message: its content and, if the answer calls the function, its `tool_calls`."""
        delta = self.delta(list(parts), first=True)
        calls = [{key: value for key, value in call.items() if key != "index"} for call in delta.get("tool_calls", ())]
        return {"content": delta.get("content") or None, "tool_calls": calls} if calls else {}

    def delta(self, parts: Sequence[Part], *, first: bool) -> dict[str, Any]:
        """The fields of a delta for the parts that were added to an answer."""
        text = "".join(part.text for part in parts if part.kind == "text")
        delta: dict[str, Any] = {"content": text} if text or first else {}
        calls = [part.text for part in parts if part.kind == "call"]
        if calls:
            arguments = json.dumps({self.function.expression: calls[0]}, ensure_ascii=False)
            function = {"name": self.function.name, "arguments": arguments}
            delta["tool_calls"] = [{"index": 0, "id": self.id, "type": "function", "function": function}]
        return delta


def client_function(model: Model, parameters: request_models.ChatRequest) -> ClientFunction | None:
    """The function of the client that an answer may call. Raises ApiError where a call is required."""
    choice = parameters.tool_choice
    if choice not in (None, "none", "auto"):
        raise ApiError(
            400,
            "tool_choice: expected 'auto' or 'none': a call cannot be forced",
            param="tool_choice",
            code="unsupported_parameter",
        )
    if choice == "none" or CALCULATOR not in model.prompt_builder.tools:
        return None
    for function in (tool.function for tool in parameters.tools or [] if tool.function):
        if expression := expression_parameter(function):
            return ClientFunction(function.name, expression)
    return None


def ignored_tools(parameters: request_models.ChatRequest, function: ClientFunction | None) -> list[str]:
    """The names of the tools that an answer could call if the model knew them."""
    tools = parameters.tools or []
    if parameters.tool_choice == "none":
        return []
    return [tool.name for tool in tools if not (function and tool.function and tool.name == function.name)]


def refused_tools(model: Model, names: Sequence[str]) -> ApiError:
    calculator = "a calculator only (one required text, such as `expression`)"
    known = calculator if CALCULATOR in model.prompt_builder.tools else "no tools"
    given = f"tools: {model.name} calls {known}, got {', '.join(names):.200}"
    message = f"{given}: leave them out"
    return ApiError(400, message, param="tools", code="unsupported_parameter")


def expression_parameter(function: request_models.Function) -> str | None:
    """The parameter of a function like a calculator: its only one, a text, or the one required of several."""
    schema = function.parameters or {}
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required or [], list):
        return None
    names = list(properties) if len(properties) == 1 else list(required or [])
    if len(names) != 1 or not isinstance(kind := properties.get(names[0]), dict) or kind.get("type") != "string":
        return None
    return names[0] if names[0] in EXPRESSIONS or "calc" in function.name.lower() else None


def with_calculator_calls(messages: list[Any], function: ClientFunction | None) -> list[Any]:
    if not function:
        return messages
    return [_with_calculator_calls(message, function) for message in messages]


def _with_calculator_calls(message: Any, function: ClientFunction) -> Any:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_as_calculator(call, function) for call in calls]}


def _as_calculator(call: Any, function: ClientFunction) -> Any:
    called = call.get("function") if isinstance(call, dict) else None
    if not isinstance(called, dict) or called.get("name") != function.name:
        return call
    arguments = called.get("arguments")
    try:
        values = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return call  # the reader of messages names the error
    if not isinstance(values, dict) or not isinstance(expression := values.get(function.expression), str):
        return call
    return {**call, "function": {"name": CALCULATOR, "arguments": {"expression": expression}}}
