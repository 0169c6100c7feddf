"""What a request wants answered, as the ids of a model. What is no conversation, or does not fit, is refused."""

from typing import NamedTuple

from chatmill.app.server import request_models
from chatmill.app.server.api_errors import ApiError
from chatmill.app.server.models import Model
from chatmill.conversation.chatml import Conversation
from chatmill.datasets.formats import messages
from chatmill.tokenizer.encoding.chat_tokenizer import check_text


class Prompt(NamedTuple):
    """What is to be answered, as ids."""

    ids: list[int]
    dropped_messages: int = 0  # messages that did not fit
    answer_prefix: str | None = None  # of jobs.GenerationConfig
    echo: str = ""  # text that the answer repeats before its own


def chat_prompt(model: Model, parameters: request_models.ChatRequest, max_tokens: int) -> Prompt:
    """The ids of a conversation. Raises ApiError for what is none, or does not fit."""
    conversation = parse_messages(parameters.messages)
    goes_on = parameters.continue_final_message
    if conversation[-1].role != ("assistant" if goes_on else "user"):
        other = "the assistant's, to be continued" if goes_on else "the user's, to be answered"
        raise ApiError(400, f"the last message is of the {conversation[-1].role}: expected {other}", param="messages")
    interpreter, lead = model.interpreter, "" if goes_on and conversation[-1].parts else None
    if parameters.truncation == "auto":
        try:
            remaining, ids = interpreter.truncate(conversation, max_tokens)
        except ValueError as error:
            raise ApiError(400, str(error), param="messages", code="context_length_exceeded") from error
        return Prompt(ids, len(conversation) - len(remaining), lead)
    ids = interpreter.prompt_ids(conversation)
    if len(ids) >= model.context:
        raise too_long(len(ids), model.context, "messages")
    return Prompt(ids, 0, lead)


def text_prompt(model: Model, parameters: request_models.CompletionRequest) -> Prompt:
    """The ids of a text, or those that were given. Raises ApiError for what does not fit."""
    given = (
        parameters.prompt[0]
        if isinstance(parameters.prompt, list) and isinstance(parameters.prompt[0], str)
        else parameters.prompt
    )
    tokenizer = model.loaded.tokenizer
    if isinstance(given, str):
        text, ids = given, model.interpreter.encode(model.loaded.template.text(validated_text(given, "prompt")))
    else:
        check_ids(model, given, tokenizer.vocab_size, "prompt")
        text, ids = tokenizer.decode(given) if parameters.echo else "", given
    if not 0 < len(ids) < model.context:
        raise too_long(len(ids), model.context, "prompt")
    return Prompt(ids, echo=text if parameters.echo else "")


def tokenize_prompt(model: Model, parameters: request_models.TokenizeRequest) -> list[int]:
    """The ids of a text as it stands, or of a conversation with what asks for the answer."""
    if parameters.prompt is None:
        return model.interpreter.prompt_ids(parse_messages(parameters.messages or []))
    return model.loaded.tokenizer.encode([validated_text(parameters.prompt, "prompt")])[0]


def parse_messages(given: list[object]) -> Conversation:
    """What messages say. Raises ApiError where they are none."""
    try:
        conversation = messages.conversation({"messages": given})
    except (ValueError, RecursionError) as error:
        raise ApiError(400, str(error), param="messages", code="invalid_value") from error
    for part in (part for message in conversation for part in message.parts):
        validated_text(part.text, "messages")
    if not conversation:
        raise ApiError(400, "no message says anything", param="messages", code="invalid_value")
    return conversation


def validated_text(text: str, param: str) -> str:
    """The text. Raises ApiError where it is no Unicode text, or one that no tokenizer takes."""
    try:
        check_text(text)
    except ValueError as error:
        raise ApiError(400, str(error), param=param, code="invalid_value") from error
    return text


def check_ids(model: Model, ids: list[int], count: int, param: str) -> None:
    """Raise ApiError unless all ids are below `count`."""
    if ids and max(ids) >= count:
        raise ApiError(400, f"id {max(ids)}: {model.name} has {count} of them", param=param, code="invalid_value")


def too_long(count: int, context: int, param: str) -> ApiError:
    """A prompt does not fit."""
    what = f"{count} tokens, but the model's context is {context}: shorten it"
    return ApiError(
        400, what if count else "there is no token to begin with", param=param, code="context_length_exceeded"
    )
