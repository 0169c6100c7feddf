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

from chatmill.app.server import requests as request_models
from chatmill.app.server.models import Model
from chatmill.app.server.security import ApiError
from chatmill.conversation import CALCULATOR, Conversation, Part
from chatmill.datasets.formats import chats
from chatmill.tokenizer.encoding.chat_tokenizer import check_text

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


# Turns the conversation or text of a request into a model's ids; refuses invalid and too long ones.


class Prompt(NamedTuple):
    ids: list[int]
    dropped_messages: int = 0  # that did not fit the context
    answer_prefix: str | None = None  # as in jobs.GenerationConfig
    echo: str = ""  # the text of the prompt, if the answer is to repeat it

    @property
    def echo_parts(self) -> list[Part]:
        """The text of the prompt as a part, if the answer is to repeat it."""
        return [Part("text", self.echo)] if self.echo else []


def chat_prompt(
    model: Model, parameters: request_models.ChatRequest, max_tokens: int, function: ClientFunction | None = None
) -> Prompt:
    """The prompt of a conversation. Raises ApiError if it is invalid or too long.

    A last message of the assistant is followed by another one, unless it is to be continued or ends with a tool's
    output, after which the assistant's turn goes on.
    """
    conversation = parse_messages(with_calculator_calls(parameters.messages, function))
    last = conversation[-1]
    ends_with_tool = bool(last.parts) and last.parts[-1].kind == "output"
    continues = parameters.continue_final_message or ends_with_tool
    if last.role == "system" or (parameters.continue_final_message and last.role != "assistant"):
        expected = "'assistant', to be continued" if continues else "'user', to be answered"
        message = f"messages: the last message has the role {last.role!r}: expected {expected}"
        raise ApiError(400, message, param="messages")
    answer_prefix = "" if continues and last.parts else None
    if parameters.tool_choice != "none":
        conversation = model.prompt_builder.declare(conversation)
    if last.role == "assistant" and not continues:
        ids = model.prompt_builder.encode(model.loaded.template.prompt(conversation))
        if len(ids) >= model.context:
            raise too_long(len(ids), model.context, "messages")
        return Prompt(ids)
    if parameters.truncation == "auto":
        try:
            remaining, ids = model.prompt_builder.truncate(conversation, max_tokens)
        except ValueError as error:
            raise ApiError(400, str(error), param="messages", code="context_length_exceeded") from error
        return Prompt(ids, len(conversation) - len(remaining), answer_prefix)
    ids = model.prompt_builder.prompt_ids(conversation)
    if len(ids) >= model.context:
        raise too_long(len(ids), model.context, "messages")
    return Prompt(ids, 0, answer_prefix)


def text_prompts(model: Model, parameters: request_models.CompletionRequest) -> list[Prompt]:
    """The prompts of texts or of given ids. Raises ApiError if one is invalid or too long."""
    return [text_prompt(model, given, echo=bool(parameters.echo)) for given in parameters.prompts]


def text_prompt(model: Model, given: str | list[int], *, echo: bool = False, param: str = "prompt") -> Prompt:
    """The prompt of a text or of given ids. Raises ApiError if it is invalid or too long."""
    tokenizer = model.loaded.tokenizer
    if isinstance(given, str):
        text, ids = given, model.prompt_builder.encode(model.loaded.template.text(validated_text(given, param)))
    else:
        check_ids(model, given, tokenizer.vocab_size, param)
        text, ids = tokenizer.decode(given) if echo else "", given
    if not 0 < len(ids) < model.context:
        raise too_long(len(ids), model.context, param)
    return Prompt(ids, answer_prefix="", echo=text if echo else "")


def tokenize_prompt(model: Model, parameters: request_models.TokenizeRequest) -> list[int]:
    """The ids of a text without control tokens, or of a conversation with the start of an answer."""
    if parameters.prompt is None:
        conversation = parse_messages(parameters.messages or [])
        return model.prompt_builder.prompt_ids(model.prompt_builder.declare(conversation))
    return model.loaded.tokenizer.encode([validated_text(parameters.prompt, "prompt")])[0]


def parse_messages(given: list[object]) -> Conversation:
    """Parse the `messages` of a request. Raises ApiError if they are invalid."""
    try:
        conversation = chats.from_messages({"messages": given})
    except (ValueError, RecursionError) as error:
        raise ApiError(400, str(error), param="messages", code="invalid_value") from error
    for part in (part for message in conversation for part in message.parts):
        validated_text(part.text, "messages")
    if not conversation:
        raise ApiError(400, "messages: expected one with text, got none", param="messages", code="invalid_value")
    return conversation


def validated_text(text: str, param: str) -> str:
    """Return the text. Raises ApiError if it is not valid Unicode, or no tokenizer can encode it."""
    try:
        check_text(text)
    except ValueError as error:
        raise ApiError(400, str(error), param=param, code="invalid_value") from error
    return text


def check_ids(model: Model, ids: list[int], count: int, param: str) -> None:
    """Raise ApiError unless all ids are below `count`."""
    if ids and max(ids) >= count:
        message = f"{param}: expected ids 0 to {count - 1} of {model.name}, got {max(ids)}"
        raise ApiError(400, message, param=param, code="invalid_value")


def too_long(count: int, context: int, param: str) -> ApiError:
    """The error for a prompt that does not fit the context, or is empty."""
    message = f"{param}: {count} tokens do not fit the model's context of {context}: shorten the text"
    return ApiError(
        400, message if count else f"{param}: expected at least one token", param=param, code="context_length_exceeded"
    )
