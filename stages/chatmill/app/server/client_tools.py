"""Tools of the client, which runs them itself: `tools` and `tool_choice` of a request.

A model that was trained to call the calculator calls a function like it, one whose only parameter is an expression:

    {"type": "function", "function": {"name": "calculator", "parameters":
        {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}}}

Any model can be made to call one function by `tool_choice`: its arguments are then JSON of the function's schema
(chatmill.app.server.json_grammar). Other tools are ignored, as a model may always answer without a call.
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
    """The function that an answer may call. `expression` is the parameter that takes the model's call.

    An answer to which `schema` applies is JSON of the function's arguments.
    """

    name: str
    expression: str = ""
    schema: dict[str, Any] | None = None


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
        if self.function.schema is not None:
            named = {"id": self.id, "type": "function"} if first else {}
            function = {"name": self.function.name} if first else {}
            return {"tool_calls": [{"index": 0, **named, "function": {**function, "arguments": text}}]}
        delta: dict[str, Any] = {"content": text} if text or first else {}
        calls = [part.text for part in parts if part.kind == "call"]
        if calls:
            arguments = json.dumps({self.function.expression: calls[0]}, ensure_ascii=False)
            function = {"name": self.function.name, "arguments": arguments}
            delta["tool_calls"] = [{"index": 0, "id": self.id, "type": "function", "function": function}]
        return delta


def client_function(model: Model, parameters: request_models.ChatRequest) -> ClientFunction | None:
    """The function of the client that an answer may call. Raises ApiError where a required call is not possible."""
    tools, choice = parameters.tools or [], parameters.tool_choice
    if not tools:
        if choice in (None, "none", "auto"):
            return None
        raise _invalid("tool_choice", f"{_describe(choice)}: there are no `tools`")
    if choice == "none":
        return None
    functions = {tool.function.name: tool.function for tool in tools if tool.function}
    if choice not in (None, "auto"):
        name = _chosen_name(choice, list(functions))
        return ClientFunction(name, schema=functions[name].parameters or {"type": "object", "properties": {}})
    if CALCULATOR in model.prompt_builder.tools:
        for function in functions.values():
            if expression := expression_parameter(function):
                return ClientFunction(function.name, expression)
    return None


def ignored_tools(parameters: request_models.ChatRequest, function: ClientFunction | None) -> list[str]:
    """The names of the tools that an answer could call if the model knew them."""
    tools = parameters.tools or []
    if parameters.tool_choice not in (None, "auto"):
        return []
    return [tool.name for tool in tools if not (function and tool.function and tool.name == function.name)]


def refused_tools(model: Model, names: Sequence[str]) -> ApiError:
    """The error for tools that the model cannot call."""
    calculator = "a calculator only (one required text, such as `expression`)"
    known = calculator if CALCULATOR in model.prompt_builder.tools else "no tools"
    given = f"tools: {model.name} calls {known}, got {', '.join(names):.200}"
    message = f"{given}: leave them out, or choose one function by `tool_choice`"
    return ApiError(400, message, param="tools", code="unsupported_parameter")


def _chosen_name(choice: object, names: Sequence[str]) -> str:
    """The function that an answer has to call. Raises ApiError if that is not one of these names."""
    if isinstance(choice, request_models.ToolChoice):
        if not choice.function:
            raise _invalid("tool_choice", f"{choice.type!r} cannot be called: choose a function of `tools`")
        if choice.function.name not in names:
            raise _invalid("tool_choice", f"there is no function {choice.function.name!r} in `tools`")
        return choice.function.name
    if len(names) != 1:
        raise _invalid("tool_choice", f"'required' needs one function in `tools`, got {len(names)}: choose one by name")
    return names[0]


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
    """The messages, with calls of the client's function as calls of the calculator, as the model wrote them."""
    if not function or not function.expression:
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


def _describe(choice: object) -> str:
    return repr(choice) if isinstance(choice, str) else "a function"


def _invalid(param: str, message: str) -> ApiError:
    return ApiError(400, f"{param}: {message}", param=param, code="invalid_value")
