"""Turns the conversation or text of a request into a model's ids; refuses invalid and too long ones."""

from typing import NamedTuple

from chatmill.app.server import requests as request_models
from chatmill.app.server.models import Model
from chatmill.app.server.security import ApiError
from chatmill.conversation import Conversation
from chatmill.datasets.formats import chats
from chatmill.datasets.formats.example import describe_value
from chatmill.tokenizer.encoding.chat_tokenizer import check_text


class Prompt(NamedTuple):
    ids: list[int]
    dropped_messages: int = 0  # that did not fit the context
    answer_prefix: str | None = None  # as in jobs.GenerationConfig
    echo: str = ""  # the text of the prompt, if the answer is to repeat it
    lost: str = ""  # characters of the last message for which the tokenizer has no tokens


def chat_prompts(model: Model, parameters: request_models.ChatRequest, max_tokens: int) -> list[Prompt]:
    """The one prompt of a conversation. Raises ApiError if it is invalid or too long.

    A last message of the assistant is followed by another one, unless it is to be continued or ends with a tool's
    output, after which the assistant's turn goes on.
    """
    conversation = parse_messages(parameters.messages)
    last = conversation[-1]
    ends_with_tool = bool(last.parts) and last.parts[-1].kind == "output"
    continues = parameters.continue_final_message or ends_with_tool
    if last.role == "system" or (parameters.continue_final_message and last.role != "assistant"):
        expected = "'assistant', to be continued" if continues else "'user', to be answered"
        message = f"messages: the last message has the role {last.role!r}: expected {expected}"
        raise ApiError(400, message, param="messages")
    answer_prefix = "" if continues and last.parts else None
    conversation = model.prompt_builder.declare(conversation)
    follows = last.role == "assistant" and not continues
    lost = "" if follows else model.loaded.tokenizer.lost(last.text)
    if parameters.truncation == "auto":
        try:
            remaining, ids = model.prompt_builder.truncate(conversation, max_tokens, follows=follows)
        except ValueError as error:
            raise ApiError(400, str(error), param="messages", code="context_length_exceeded") from error
        return [Prompt(ids, len(conversation) - len(remaining), answer_prefix, lost=lost)]
    ids = model.prompt_builder.prompt_ids(conversation, follows=follows)
    if len(ids) >= model.context:
        several = [message.role for message in conversation].count("user") > 1
        remedy = ", or set truncation: auto, which leaves out the oldest turns" if several else ""
        raise too_long(len(ids), model.context, "messages", remedy)
    return [Prompt(ids, 0, answer_prefix, lost=lost)]


def text_prompts(model: Model, parameters: request_models.CompletionRequest, _: int) -> list[Prompt]:
    """The prompts of texts or of given ids. Raises ApiError if one is invalid or too long."""
    return [text_prompt(model, given, echo=bool(parameters.echo)) for given in parameters.prompts]


def text_prompt(model: Model, given: str | list[int], *, echo: bool) -> Prompt:
    tokenizer = model.loaded.tokenizer
    if isinstance(given, str):
        text, ids = given, model.prompt_builder.encode(model.loaded.template.text(validated_text(given, "prompt")))
    else:
        check_ids(model, given, tokenizer.vocab_size, "prompt")
        text, ids = tokenizer.decode(given), given
    if not 0 < len(ids) < model.context:
        raise too_long(len(ids), model.context, "prompt")
    return Prompt(ids, answer_prefix="", echo=text if echo else "")


def tokenize_prompt(model: Model, parameters: request_models.TokenizeRequest) -> list[int]:
    """The ids of a text without control tokens, or of a conversation with the start of an answer."""
    if parameters.prompt is None:
        conversation = parse_messages(parameters.messages or [])
        return model.prompt_builder.prompt_ids(model.prompt_builder.declare(conversation))
    return model.loaded.tokenizer.encode([validated_text(parameters.prompt, "prompt")])[0]


def with_content(message: object, number: int) -> object:
    """A message, with empty content where an assistant or a tool has none. Raises ApiError if it is not a message."""
    name, expected = f"messages.{number}", "an object with role and content"
    if isinstance(message, dict):
        content, role = message.get("content"), message.get("role")
        if content is None and role in ("assistant", "tool"):
            return message if message.get("tool_calls") else {**message, "content": ""}
        if isinstance(role, str) and isinstance(content, str | list):
            return message
        name, expected = (f"{name}.content", "text") if isinstance(role, str) else (f"{name}.role", "a text")
        message = content if isinstance(role, str) else role
    error = f"{name}: expected {expected}, got {describe_value(message)}"
    raise ApiError(400, error, param="messages", code="invalid_value")


def parse_messages(given: list[object]) -> Conversation:
    given = [with_content(message, number) for number, message in enumerate(given)]
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
    if ids and max(ids) >= count:
        message = f"{param}: expected ids 0 to {count - 1} of {model.name}, got {max(ids)}"
        raise ApiError(400, message, param=param, code="invalid_value")


def too_long(count: int, context: int, param: str, remedy: str = "") -> ApiError:
    """The error for a prompt that does not fit the context, or is empty."""
    message = f"{param}: {count} tokens do not fit the model's context of {context}: shorten the text{remedy}"
    return ApiError(
        400, message if count else f"{param}: expected at least one token", param=param, code="context_length_exceeded"
    )
